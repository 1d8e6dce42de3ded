{{/* What do all of the release's Ray pods have in common? */}}

{{- define "shardwise.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.securityContext.runAsUser }}
runAsGroup: {{ .Values.securityContext.runAsUser }}
fsGroup: {{ .Values.securityContext.runAsUser }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "shardwise.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: {{ .Values.securityContext.readOnlyRootFilesystem }}
capabilities:
  drop: [ALL]
{{- end -}}

{{/* No version among them: KubeRay would make a new Ray cluster of every release of the chart. */}}
{{- define "shardwise.podLabels" -}}
{{ include "shardwise.podSelector" . }}
{{- with (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* (list $ "role" pool-or-"") */}}
{{- define "shardwise.podSelector" -}}
{{ include "shardwise.selector" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- with index . 2 }}
shardwise/pool: {{ . }}
{{- end }}
{{- end -}}

{{- define "shardwise.env" -}}
- name: HOME
  value: /home/shardwise
- name: SHARDWISE_HOME
  value: /var/lib/shardwise
- name: HF_HOME
  value: /models/huggingface
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
# The head by the name of its own Ray cluster, under which a new head pod is found too.
- name: SHARDWISE_RAY_CLUSTER
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['ray.io/cluster']
- name: SHARDWISE_DASHBOARD
  value: http://$(SHARDWISE_RAY_CLUSTER)-head-svc:8265
{{- if .Values.huggingFace.offline }}
- name: HF_HUB_OFFLINE
  value: "1"
{{- end }}
{{- with .Values.huggingFace.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.huggingFace.key }}
{{- end }}
{{- end -}}

{{/* A pod that is told to end is drained first: what was begun there is finished. */}}
{{- define "shardwise.drain" -}}
- name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S
  value: {{ include "shardwise.answerSeconds" . | quote }}
{{- end -}}

{{- define "shardwise.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /home/shardwise}
- {name: state, mountPath: /var/lib/shardwise/instance, subPath: instance}
- {name: state, mountPath: /var/lib/shardwise/weights, subPath: weights}
- {name: models, mountPath: /models}
- {name: shm, mountPath: /dev/shm}
{{- end -}}

{{/* (list $ shm-GiB) */}}
{{- define "shardwise.volumes" -}}
{{- $root := index . 0 -}}
- name: tmp
  emptyDir: {}
- name: home
  emptyDir: {}
- name: state
  emptyDir: {}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ index . 1 }}Gi
- name: models
  {{- with $root.Values.modelCache }}
  {{- if eq .kind "pvc" }}
  persistentVolumeClaim:
    claimName: {{ .pvc.existingClaim | default (printf "%s-models" (include "shardwise.fullname" $root)) }}
  {{- else if eq .kind "hostPath" }}
  hostPath:
    path: {{ .hostPath.path }}
    type: DirectoryOrCreate
  {{- else if .sizeLimit }}
  emptyDir:
    sizeLimit: {{ .sizeLimit }}
  {{- else }}
  emptyDir: {}
  {{- end }}
  {{- end }}
{{- end -}}

{{/* Pod fields that all have; (list $ values-of-its-kind account automount) */}}
{{- define "shardwise.placement" -}}
{{- $root := index . 0 -}}
{{- $own := index . 1 -}}
serviceAccountName: {{ index . 2 }}
automountServiceAccountToken: {{ index . 3 }}
securityContext:
  {{- include "shardwise.podSecurity" $root | nindent 2 }}
{{- with include "shardwise.priorityClassName" $root }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "shardwise.grace" -}}
terminationGracePeriodSeconds: {{ add (include "shardwise.answerSeconds" . | int) 60 }}
{{- end -}}

{{/* Spread over nodes; (list $ topologyKey maxSkew whenUnsatisfiable role pool) */}}
{{- define "shardwise.spread" -}}
topologySpreadConstraints:
  - maxSkew: {{ index . 2 }}
    topologyKey: {{ index . 1 }}
    whenUnsatisfiable: {{ index . 3 }}
    labelSelector:
      matchLabels:
        {{- include "shardwise.podSelector" (list (index . 0) (index . 4) (index . 5)) | nindent 8 }}
    matchLabelKeys: [ray.io/cluster]
{{- end -}}

{{- define "shardwise.container" -}}
image: {{ include "shardwise.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "shardwise.containerSecurity" . | nindent 2 }}
{{- end -}}
