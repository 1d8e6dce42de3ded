{{/* What follows from the plan? Pods of each pool, and the Serve configuration. */}}

{{/* The plan as JSON, checked. */}}
{{- define "shardwise.plan" -}}
{{- include "shardwise.check.plan" . -}}
{{- include "shardwise.planText" . -}}
{{- end -}}

{{/* However it was given. */}}
{{- define "shardwise.planText" -}}
{{- if kindIs "string" .Values.plan -}}
{{ .Values.plan }}
{{- else -}}
{{ toJson .Values.plan }}
{{- end -}}
{{- end -}}

{{/*
Pods of each pool, as JSON. A pod has whole tensor groups of one replica; a replica of more devices
than a node has spans pods, its pipeline stages whole.
  devices: of a pod; perReplica: pods of a replica; minimum, maximum: pods of the plan's bounds;
  ceiling: pods that the plan's cluster holds
*/}}
{{- define "shardwise.pools" -}}
{{- $plan := include "shardwise.plan" . | fromJson -}}
{{- $node := int $plan.cluster.devices_per_node -}}
{{- $there := mul $node $plan.cluster.nodes | int -}}
{{- $pools := list -}}
{{- range $plan.pools -}}
  {{- $tp := int (default 1 .layout.tp) -}}
  {{- $ranks := mul $tp (int (default 1 .layout.pp)) | int -}}
  {{- $share := $ranks -}}
  {{- if gt $ranks $node -}}
    {{- $share = mul (div $node $tp) $tp | int -}}
  {{- end -}}
  {{- $perReplica := div (add $ranks $share -1) $share | int -}}
  {{- $devices := int (default $share (index $.Values.workers.devicesPerPod .name)) -}}
  {{- $replicasPerPod := 1 -}}
  {{- if eq $perReplica 1 -}}
    {{- $replicasPerPod = max 1 (div $devices $share) | int -}}
  {{- end -}}
  {{- $least := int (dig "replicas" "minimum" 1 .) -}}
  {{- $most := int (dig "replicas" "maximum" 1 .) -}}
  {{- $pools = append $pools (dict
      "name" .name
      "share" $share
      "devices" $devices
      "perReplica" $perReplica
      "minimum" (div (add (mul $least $perReplica) $replicasPerPod -1) $replicasPerPod)
      "maximum" (div (add (mul $most $perReplica) $replicasPerPod -1) $replicasPerPod)
      "ceiling" (div $there $devices)) -}}
{{- end -}}
{{ toJson $pools }}
{{- end -}}

{{/* The resource that holds gateways on their pods, one on each. */}}
{{- define "shardwise.gatewayResource" -}}shardwise-gateway{{- end -}}

{{- define "shardwise.keysFile" -}}/etc/shardwise/keys/keys.yaml{{- end -}}

{{/* The serving configuration as JSON: the operator's sections, and what the chart sets. */}}
{{- define "shardwise.config" -}}
{{- $http := dict
    "host" "0.0.0.0"
    "port" (int .Values.gateway.port)
    "gateways" (int .Values.gateway.count)
    "node_resource" (include "shardwise.gatewayResource" .) -}}
{{- $config := merge (dict "http" $http) (deepCopy .Values.config) -}}
{{/* Ray's autoscaler takes a pod away only when no actor is on it. */}}
{{- $config = mergeOverwrite (dict "steering" (dict "keeper" (dict "leave_s" 60))) $config -}}
{{- if include "shardwise.keysSecret" . -}}
  {{- $config = merge (dict "access" (dict "keys_file" (include "shardwise.keysFile" .))) $config -}}
{{- end -}}
{{ toJson $config }}
{{- end -}}

{{/* Longest answer, seconds: what is begun gets so long to be finished. */}}
{{- define "shardwise.answerSeconds" -}}
{{- int (ceil (float64 (dig "limits" "answer_s" 900 .Values.config))) -}}
{{- end -}}

{{/* As `shardwise export --format serve` writes it (cluster/rayservice_files.py). */}}
{{- define "shardwise.serveConfig" -}}
proxy_location: Disabled
applications:
  - name: shardwise-reconciler
    route_prefix: null
    import_path: serving.rayservice.application:application
    args:
      {{- if .Values.upgrade.allowBelowFloor }}
      allow_below_floor: true
      {{- end }}
      config: {{ include "shardwise.config" . }}
      plan: {{ include "shardwise.plan" . | fromJson | toJson }}
{{- end -}}
