{{/* Can this be installed? Every refusal names the value, its limit and the fix. */}}

{{- define "shardwise.refuse" -}}
{{- fail (printf "\n\n%s is %v, %s. Fix: %s\n" (index . 0) (index . 1) (index . 2) (index . 3)) -}}
{{- end -}}

{{- define "shardwise.check" -}}
{{- include "shardwise.check.pods" . -}}
{{- include "shardwise.check.access" . -}}
{{- include "shardwise.check.upgrade" . -}}
{{- include "shardwise.check.storage" . -}}
{{- include "shardwise.check.routes" . -}}
{{- include "shardwise.check.parts" . -}}
{{- end -}}

{{- define "shardwise.check.plan" -}}
{{- $name := include "shardwise.fullname" . -}}
{{- if gt (len $name) 47 -}}
{{- include "shardwise.refuse" (list "fullnameOverride or the release's name" $name "KubeRay takes 47 characters at most" "choose a shorter one.") -}}
{{- end -}}
{{- if not .Values.plan -}}
{{- include "shardwise.refuse" (list "plan" "empty" "the chart serves a plan" "helm install … --set-file plan=plan.json, with the file that `shardwise plan --out` wrote.") -}}
{{- end -}}
{{- $plan := include "shardwise.planText" . | fromJson -}}
{{- if hasKey $plan "Error" -}}
{{- include "shardwise.refuse" (list "plan" "no JSON" $plan.Error "pass the file that `shardwise plan --out` wrote, with --set-file.") -}}
{{- end -}}
{{- if ne (int (default 1 $plan.version)) 1 -}}
{{- include "shardwise.refuse" (list "plan.version" $plan.version "this chart reads version 1" "make the plan again with this release.") -}}
{{- end -}}
{{- range list "cluster" "pools" -}}
{{- if not (index $plan .) -}}
{{- include "shardwise.refuse" (list "plan" (printf "without %s" .) "it is no plan" "pass the file that `shardwise plan --out` wrote, with --set-file.") -}}
{{- end -}}
{{- end -}}
{{- $node := int $plan.cluster.devices_per_node -}}
{{- range $plan.pools -}}
  {{- $pool := printf "plan.pools.%s.layout" .name -}}
  {{- if gt (int (default 1 .layout.dp)) 1 -}}
  {{- include "shardwise.refuse" (list (printf "%s.dp" $pool) .layout.dp "a replica is one engine" "plan with --max-dp 1.") -}}
  {{- end -}}
  {{- if .layout.dims -}}
  {{- include "shardwise.refuse" (list (printf "%s.dims" $pool) (keys .layout.dims | sortAlpha | join ", ") "vLLM cannot cut single operators" "plan with --engine vllm.") -}}
  {{- end -}}
  {{- if gt (int (default 1 .layout.tp)) $node -}}
  {{- include "shardwise.refuse" (list (printf "%s.tp" $pool) .layout.tp (printf "a tensor group stays on one node, which has %d devices" $node) "plan again for nodes of that size.") -}}
  {{- end -}}
  {{- if and (hasPrefix "/" .model.source) (not (hasPrefix "/models/" .model.source)) -}}
  {{- include "shardwise.refuse" (list (printf "plan.pools.%s.model.source" .name) .model.source "pods see directories of the model cache only, at /models" "put the model there (modelCache) and plan with --model-source /models/…, or name a Hugging Face id.") -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "shardwise.check.pods" -}}
{{- $plan := include "shardwise.plan" . | fromJson -}}
{{- $node := int $plan.cluster.devices_per_node -}}
{{- $pools := include "shardwise.pools" . | fromJsonArray -}}
{{- $names := list -}}
{{- $needed := 0 -}}
{{- range $pools -}}
  {{- $names = append $names .name -}}
  {{- $needed = add $needed (mul .maximum .devices) -}}
  {{- $value := printf "workers.devicesPerPod.%s" .name -}}
  {{- if lt (int .devices) (int .share) -}}
  {{- include "shardwise.refuse" (list $value .devices (printf "a replica has %d devices on a node" (int .share)) "leave it out, or set that at least.") -}}
  {{- end -}}
  {{- if gt (int .devices) $node -}}
  {{- include "shardwise.refuse" (list $value .devices (printf "nodes of the plan have %d devices" $node) "set that at most.") -}}
  {{- end -}}
{{- end -}}
{{- range $name, $_ := .Values.workers.devicesPerPod -}}
  {{- if not (has $name $names) -}}
  {{- include "shardwise.refuse" (list "workers.devicesPerPod" $name (printf "the plan's pools are %s" (join ", " $names)) "name one of them.") -}}
  {{- end -}}
{{- end -}}
{{- $there := mul $node $plan.cluster.nodes -}}
{{- if gt (int $needed) (int $there) -}}
{{- include "shardwise.refuse" (list "workers.devicesPerPod" (toJson .Values.workers.devicesPerPod) (printf "pods of the plan's maximum would take %d devices, its cluster has %d" (int $needed) (int $there)) "set fewer devices per pod, or plan with fewer replicas (--max-replicas).") -}}
{{- end -}}
{{- if and (eq (default "gpu" $plan.cluster.device_kind) "gpu") (not .Values.workers.deviceResource) -}}
{{- include "shardwise.refuse" (list "workers.deviceResource" "empty" (printf "the plan is for %s" $plan.cluster.device) "name Kubernetes' resource of it, such as nvidia.com/gpu.") -}}
{{- end -}}
{{- range list "cpuPerDevice" "memoryGiPerDevice" "shmGiPerDevice" -}}
{{- if lt (int (index $.Values.workers .)) 1 -}}
{{- include "shardwise.refuse" (list (printf "workers.%s" .) (index $.Values.workers .) "a rank needs some" "set 1 or more.") -}}
{{- end -}}
{{- end -}}
{{- if lt (int .Values.gateway.count) 1 -}}
{{- include "shardwise.refuse" (list "gateway.count" .Values.gateway.count "callers need a gateway" "set 1 or more; 2 survive the loss of a node.") -}}
{{- end -}}
{{- $port := int .Values.gateway.port -}}
{{- if or (lt $port 1024) (gt $port 65535) -}}
{{- include "shardwise.refuse" (list "gateway.port" $port "containers run as no root, so it is 1024 to 65535" "choose one there; an Ingress or a route listens on 80 and 443.") -}}
{{- end -}}
{{- if has $port (list 6379 8080 8265 10001 52365) -}}
{{- include "shardwise.refuse" (list "gateway.port" $port "Ray listens there itself (6379, 8080, 8265, 10001, 52365)" "choose another, such as 8000.") -}}
{{- end -}}
{{- with .Values.image -}}
{{- if not .repository -}}
{{- include "shardwise.refuse" (list "image.repository" "empty" "there is no public image" "build docker/Dockerfile, push it, and name it.") -}}
{{- end -}}
{{- if and (not .digest) (or (not .tag) (eq .tag "latest")) -}}
{{- include "shardwise.refuse" (list "image.tag" (default "empty" .tag) "pods that start later must run the same" "set the tag of a release, or image.digest.") -}}
{{- end -}}
{{- if and .digest (not (regexMatch "^sha256:[0-9a-f]{64}$" .digest)) -}}
{{- include "shardwise.refuse" (list "image.digest" .digest "it is no digest" "write sha256: and 64 hexadecimal digits.") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "shardwise.check.access" -}}
{{- $set := list -}}
{{- with .Values.access -}}
{{- if .existingSecret }}{{ $set = append $set "existingSecret" }}{{ end -}}
{{- if .keys }}{{ $set = append $set "keys" }}{{ end -}}
{{- if .anyone }}{{ $set = append $set "anyone" }}{{ end -}}
{{- end -}}
{{- if ne (len $set) 1 -}}
{{- include "shardwise.refuse" (list "access" (default "empty" (join " and " $set)) "exactly one of existingSecret, keys, anyone says who may ask" "make keys with `shardwise key NAME` and set access.existingSecret or access.keys; access.anyone=true for a closed network.") -}}
{{- end -}}
{{- range $name := list "host" "port" "gateways" "node_resource" -}}
{{- if hasKey (default dict (get $.Values.config "http")) $name -}}
{{- include "shardwise.refuse" (list (printf "config.http.%s" $name) (index $.Values.config.http $name) "the chart sets it" "leave it out; gateway.port and gateway.count are the values for it.") -}}
{{- end -}}
{{- end -}}
{{- if .Values.config.access -}}
{{- include "shardwise.refuse" (list "config.access" (toJson .Values.config.access) "the chart sets it" "leave it out; access.existingSecret or access.keys are the values for it.") -}}
{{- end -}}
{{- end -}}

{{- define "shardwise.check.upgrade" -}}
{{- with .Values.upgrade -}}
{{- $known := list "NewCluster" "NewClusterWithIncrementalUpgrade" "None" -}}
{{- if not (has .strategy $known) -}}
{{- include "shardwise.refuse" (list "upgrade.strategy" .strategy "KubeRay does not know it" (printf "choose one of %s." (join ", " $known))) -}}
{{- end -}}
{{- $answer := include "shardwise.answerSeconds" $ | int -}}
{{- if lt (int .deletionDelaySeconds) $answer -}}
{{- include "shardwise.refuse" (list "upgrade.deletionDelaySeconds" .deletionDelaySeconds (printf "answers of %d s (config.limits.answer_s) would be cut" $answer) "set more than that.") -}}
{{- end -}}
{{- if include "shardwise.incremental" $ -}}
{{- with .incremental -}}
{{- if not .gatewayClassName -}}
{{- include "shardwise.refuse" (list "upgrade.incremental.gatewayClassName" "empty" "KubeRay moves traffic with a Gateway of its own" "name a GatewayClass (`kubectl get gatewayclass`), or set upgrade.strategy=NewCluster.") -}}
{{- end -}}
{{- if or (lt (int .maxSurgePercent) 1) (gt (int .maxSurgePercent) 100) -}}
{{- include "shardwise.refuse" (list "upgrade.incremental.maxSurgePercent" .maxSurgePercent "it is a share, 1 to 100" "set 100 where the devices are there twice.") -}}
{{- end -}}
{{- if or (lt (int .stepSizePercent) 1) (gt (int .stepSizePercent) (int .maxSurgePercent)) -}}
{{- include "shardwise.refuse" (list "upgrade.incremental.stepSizePercent" .stepSizePercent (printf "it is 1 to maxSurgePercent, %d" (int .maxSurgePercent)) "set a smaller step.") -}}
{{- end -}}
{{- if lt (int .intervalSeconds) 1 -}}
{{- include "shardwise.refuse" (list "upgrade.incremental.intervalSeconds" .intervalSeconds "steps need time" "set 1 or more.") -}}
{{- end -}}
{{- end -}}
{{- range list "ingress" "httpRoute" -}}
{{- if (index $.Values .).enabled -}}
{{- include "shardwise.refuse" (list (printf "%s.enabled" .) true "an upgrade in steps has KubeRay's own Gateway and route before the gateways" (printf "set %s.enabled=false, or upgrade.strategy=NewCluster." .)) -}}
{{- end -}}
{{- end -}}
{{- if eq $.Values.monitoring.scrape "ServiceMonitor" -}}
{{- include "shardwise.refuse" (list "monitoring.scrape" "ServiceMonitor" "an upgrade in steps has a Service for each Ray cluster, made by KubeRay" "set monitoring.scrape=PodMonitor.") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not (regexMatch "^[0-9]+\\.[0-9]+\\.[0-9]+$" .Values.rayVersion) -}}
{{- include "shardwise.refuse" (list "rayVersion" .Values.rayVersion "KubeRay reads three numbers" "set the version of Ray in the image, such as 2.60.0.") -}}
{{- end -}}
{{- end -}}

{{- define "shardwise.check.storage" -}}
{{- with .Values.modelCache -}}
{{- if not (has .kind (list "emptyDir" "pvc" "hostPath")) -}}
{{- include "shardwise.refuse" (list "modelCache.kind" .kind "it is not known" "choose emptyDir, pvc or hostPath.") -}}
{{- end -}}
{{- if and (eq .kind "pvc") (eq (empty .pvc.existingClaim) (empty .pvc.size)) -}}
{{- include "shardwise.refuse" (list "modelCache.pvc" (toJson .pvc) "it needs either a claim that is there or the size of a new one" "set modelCache.pvc.existingClaim or modelCache.pvc.size.") -}}
{{- end -}}
{{- if and (eq .kind "hostPath") (not (hasPrefix "/" .hostPath.path)) -}}
{{- include "shardwise.refuse" (list "modelCache.hostPath.path" (default "empty" .hostPath.path) "it is no absolute path" "set the directory of the nodes, such as /mnt/models.") -}}
{{- end -}}
{{- end -}}
{{- if .Values.gcs.faultTolerance -}}
{{- with .Values.gcs.redis -}}
{{- if eq (empty .address) (not .inChart.enabled) -}}
{{- include "shardwise.refuse" (list "gcs.redis" (printf "address %s, inChart.enabled %v" (default "empty" .address) .inChart.enabled) "fault tolerance of the head needs exactly one Redis" "set gcs.redis.address (host:port) or gcs.redis.inChart.enabled=true; gcs.faultTolerance=false gives it up.") -}}
{{- end -}}
{{- if and .address (not (regexMatch "^[^:]+(:[0-9]+)?$" .address)) -}}
{{- include "shardwise.refuse" (list "gcs.redis.address" .address "it is host:port" "write it as redis.databases:6379.") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "shardwise.check.routes" -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- include "shardwise.refuse" (list "ingress.host" "empty" "an Ingress for every host would take others' traffic" "set the host name of the service.") -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- include "shardwise.refuse" (list "httpRoute.parentRefs" "empty" "a route hangs on a Gateway" "name one, e.g. [{name: public, namespace: infra}].") -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.operatorNamespace) -}}
{{- include "shardwise.refuse" (list "networkPolicy.operatorNamespace" "empty" "KubeRay must reach the head" "set the operator's namespace, or networkPolicy.enabled=false.") -}}
{{- end -}}
{{- end -}}

{{- define "shardwise.check.parts" -}}
{{- if not (has .Values.monitoring.scrape (list "PodMonitor" "ServiceMonitor" "none")) -}}
{{- include "shardwise.refuse" (list "monitoring.scrape" .Values.monitoring.scrape "it is not known" "choose PodMonitor, ServiceMonitor or none.") -}}
{{- end -}}
{{- with .Values.searchJob -}}
{{- if .enabled -}}
{{- if not .arguments -}}
{{- include "shardwise.refuse" (list "searchJob.arguments" "empty" "the job runs a command of shardwise" "set e.g. searchJob.arguments={search,--model,…}.") -}}
{{- end -}}
{{- if not (has (first .arguments) (list "search" "calibrate" "simulate")) -}}
{{- include "shardwise.refuse" (list "searchJob.arguments" (first .arguments) "jobs are for long computations" "begin with search, calibrate or simulate.") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.priorityClass.create .Values.priorityClass.name -}}
{{- include "shardwise.refuse" (list "priorityClass.name" .Values.priorityClass.name "with priorityClass.create the chart makes one of its own" "set one of the two.") -}}
{{- end -}}
{{- if not .Values.serviceAccount.create -}}
{{- range list "head" "pods" -}}
{{- if not (index $.Values.serviceAccount .) -}}
{{- include "shardwise.refuse" (list (printf "serviceAccount.%s" .) "empty" "with serviceAccount.create=false the chart makes none" "name an account that is there.") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
