{{/* What are the chart's objects called, and by which labels are they found? */}}

{{- define "shardwise.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name -}}
{{- end -}}

{{- define "shardwise.selector" -}}
app.kubernetes.io/name: shardwise
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "shardwise.labels" -}}
{{ include "shardwise.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Metadata of an object. (list $ "suffix") */}}
{{- define "shardwise.metadata" -}}
{{- $root := index . 0 -}}
{{- $suffix := index . 1 -}}
name: {{ include "shardwise.fullname" $root }}{{ with $suffix }}-{{ . }}{{ end }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "shardwise.labels" $root | nindent 2 }}
{{- with $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "shardwise.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "shardwise.service" -}}
{{ include "shardwise.fullname" . }}-serve-svc
{{- end -}}

{{- define "shardwise.account.head" -}}
{{- .Values.serviceAccount.head | default (printf "%s-head" (include "shardwise.fullname" .)) -}}
{{- end -}}

{{- define "shardwise.account.pods" -}}
{{- .Values.serviceAccount.pods | default (printf "%s-pods" (include "shardwise.fullname" .)) -}}
{{- end -}}

{{/* Secret with the password of the chart's own Redis. */}}
{{- define "shardwise.redisSecret" -}}
{{- .Values.gcs.redis.existingSecret | default (printf "%s-redis" (include "shardwise.fullname" .)) -}}
{{- end -}}

{{- define "shardwise.redisKey" -}}
{{- ternary .Values.gcs.redis.key "password" (not (empty .Values.gcs.redis.existingSecret)) -}}
{{- end -}}

{{- define "shardwise.keysSecret" -}}
{{- with .Values.access -}}
{{- if .existingSecret -}}
{{ .existingSecret }}
{{- else if .keys -}}
{{ include "shardwise.fullname" $ }}-keys
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "shardwise.priorityClassName" -}}
{{- with .Values.priorityClass -}}
{{- if .name -}}{{ .name }}{{- else if .create -}}{{ include "shardwise.fullname" $ }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "shardwise.incremental" -}}
{{- if eq .Values.upgrade.strategy "NewClusterWithIncrementalUpgrade" }}true{{ end -}}
{{- end -}}
