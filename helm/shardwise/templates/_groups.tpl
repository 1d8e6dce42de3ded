{{/* Which pods does the Ray cluster have? The head, gateways, and a group for each pool. */}}

{{- define "shardwise.headGroup" -}}
rayStartParams:
  dashboard-host: "0.0.0.0"
# No actor that asks for a core, an engine least of all, goes to the head.
resources:
  CPU: "0"
  GPU: "0"
template:
  metadata:
    labels:
      {{- include "shardwise.podLabels" (list . "head" "") | nindent 6 }}
    annotations:
      # The application moves to another plan in place; another configuration is a new cluster.
      shardwise/config: {{ include "shardwise.config" . | fromJson | toJson | sha256sum }}
      {{- with .Values.head.podAnnotations }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    {{- include "shardwise.placement" (list . .Values.head (include "shardwise.account.head" .) true) | nindent 4 }}
    containers:
      - name: ray-head
        {{- include "shardwise.container" . | nindent 8 }}
        ports:
          - {name: gcs-server, containerPort: 6379}
          - {name: dashboard, containerPort: 8265}
          - {name: client, containerPort: 10001}
          - {name: metrics, containerPort: 8080}
          - {name: serve, containerPort: {{ .Values.gateway.port }}}
        resources:
          {{- toYaml .Values.head.resources | nindent 10 }}
        env:
          {{- include "shardwise.env" . | nindent 10 }}
          - name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S
            value: "0"
          {{- with .Values.head.env }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        volumeMounts:
          {{- include "shardwise.mounts" . | nindent 10 }}
    volumes:
      {{- include "shardwise.volumes" (list . 1) | nindent 6 }}
{{- end -}}

{{- define "shardwise.gatewayGroup" -}}
groupName: gateway
# As many as the serving configuration has gateways: nothing scales them.
minReplicas: {{ .Values.gateway.count }}
maxReplicas: {{ .Values.gateway.count }}
rayStartParams: {}
resources:
  CPU: "0"
  GPU: "0"
  {{ include "shardwise.gatewayResource" . }}: "1"
template:
  metadata:
    labels:
      {{- include "shardwise.podLabels" (list . "gateway" "") | nindent 6 }}
    {{- with .Values.gateway.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    {{- include "shardwise.placement" (list . .Values.gateway (include "shardwise.account.pods" .) false) | nindent 4 }}
    {{- include "shardwise.grace" . | nindent 4 }}
    {{- include "shardwise.spread" (list . "kubernetes.io/hostname" 1 "ScheduleAnyway" "gateway" "") | nindent 4 }}
    containers:
      - name: gateway
        {{- include "shardwise.container" . | nindent 8 }}
        ports:
          - {name: serve, containerPort: {{ .Values.gateway.port }}}
          - {name: metrics, containerPort: 8080}
        # KubeRay would ask Serve's proxy, which does not run here: the gateway listens itself.
        readinessProbe:
          httpGet:
            path: /health
            port: serve
          periodSeconds: 5
          timeoutSeconds: 3
          failureThreshold: 2
        resources:
          {{- toYaml .Values.gateway.resources | nindent 10 }}
        env:
          {{- include "shardwise.env" . | nindent 10 }}
          {{- include "shardwise.drain" . | nindent 10 }}
          {{- with .Values.gateway.env }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        volumeMounts:
          {{- include "shardwise.mounts" . | nindent 10 }}
          {{- if include "shardwise.keysSecret" . }}
          - {name: keys, mountPath: {{ include "shardwise.keysFile" . | dir }}, readOnly: true}
          {{- end }}
    volumes:
      {{- include "shardwise.volumes" (list . 1) | nindent 6 }}
      {{- with include "shardwise.keysSecret" . }}
      - name: keys
        secret:
          secretName: {{ . }}
          items:
            - {key: keys.yaml, path: keys.yaml}
      {{- end }}
{{- end -}}

{{/* (list $ pool device-kind) */}}
{{- define "shardwise.poolGroup" -}}
{{- $root := index . 0 -}}
{{- $pool := index . 1 -}}
{{- $workers := $root.Values.workers -}}
{{- $devices := int $pool.devices -}}
{{- $gpu := eq (index . 2) "gpu" -}}
groupName: {{ $pool.name }}
# How many there are is the controller's matter, and Ray's autoscaler follows. The ceiling is the
# cluster's and not the plan's: KubeRay hands no new bounds to a Ray cluster that runs.
minReplicas: {{ $pool.minimum }}
maxReplicas: {{ $pool.ceiling }}
rayStartParams: {}
# A core of Ray's for each rank, and no more: nothing else comes here.
resources:
  CPU: {{ $devices | quote }}
  GPU: {{ ternary $devices 0 $gpu | quote }}
template:
  metadata:
    labels:
      {{- include "shardwise.podLabels" (list $root "engine" $pool.name) | nindent 6 }}
    {{- with $workers.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    {{- include "shardwise.placement" (list $root $workers (include "shardwise.account.pods" $root) false) | nindent 4 }}
    {{- include "shardwise.grace" $root | nindent 4 }}
    {{- with $workers.runtimeClassName }}
    runtimeClassName: {{ . }}
    {{- end }}
    {{- with $workers.spread }}
    {{- if .topologyKey }}
    {{- include "shardwise.spread" (list $root .topologyKey .maxSkew .whenUnsatisfiable "engine" $pool.name) | nindent 4 }}
    {{- end }}
    {{- end }}
    containers:
      - name: engine
        {{- include "shardwise.container" $root | nindent 8 }}
        ports:
          - {name: metrics, containerPort: 8080}
        readinessProbe:
          httpGet:
            {{- if include "shardwise.incremental" $root }}
            # KubeRay's own Service of an upgrade in steps takes every ready pod for one that
            # answers callers: here only gateways do, so engines are not ready.
            path: /health
            port: {{ $root.Values.gateway.port }}
            {{- else }}
            path: /api/local_raylet_healthz
            port: 52365
            {{- end }}
          periodSeconds: 5
          timeoutSeconds: 5
          failureThreshold: 6
        {{- $host := dict
            "cpu" (mul $devices $workers.cpuPerDevice)
            "memory" (printf "%dGi" (mul $devices $workers.memoryGiPerDevice)) }}
        {{- $fixed := merge (dict "memory" $host.memory) $workers.extraResources }}
        {{- if $gpu }}
        {{- $fixed = merge (dict $workers.deviceResource $devices) $fixed }}
        {{- end }}
        resources:
          requests:
            {{- merge (dict "cpu" $host.cpu) $fixed | toYaml | nindent 12 }}
          limits:
            {{- $fixed | toYaml | nindent 12 }}
        env:
          {{- include "shardwise.env" $root | nindent 10 }}
          {{- include "shardwise.drain" $root | nindent 10 }}
          {{- with $workers.env }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        volumeMounts:
          {{- include "shardwise.mounts" $root | nindent 10 }}
    volumes:
      {{- include "shardwise.volumes" (list $root (mul $devices $workers.shmGiPerDevice)) | nindent 6 }}
{{- end -}}
