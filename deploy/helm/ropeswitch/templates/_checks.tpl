{{/* Refuse values of a pool that the schema cannot check, with the reason. */}}
{{- define "ropeswitch.check" -}}
{{- $v := .Values -}}
{{- $p := $v.parallelism -}}
{{- $at := ternary "longPool.values." "" (eq .pool "long") -}}
{{- $ranks := int (mul $p.tensor $p.pipeline) -}}
{{- $nodes := int $p.nodes -}}
{{- $gpus := int $p.gpusPerNode -}}
{{- if and (gt $gpus 0) (ne $ranks (int (mul $nodes $gpus))) -}}
{{- fail (printf "%sparallelism: tensor %d x pipeline %d uses %d GPUs, but nodes %d x gpusPerNode %d are %d; they must be equal" $at (int $p.tensor) (int $p.pipeline) $ranks $nodes $gpus (mul $nodes $gpus)) -}}
{{- end -}}
{{- if and (gt $nodes 1) (eq $gpus 0) -}}
{{- fail (printf "%sparallelism.nodes: %d nodes need parallelism.gpusPerNode of at least 1" $at $nodes) -}}
{{- end -}}
{{- range $kind, $these := dict "limits" $v.resources.limits "requests" $v.resources.requests -}}
{{- if hasKey (default dict $these) "nvidia.com/gpu" -}}
{{- $named := index $these "nvidia.com/gpu" -}}
{{- if ne (print $named) (print $gpus) -}}
{{- fail (printf "%sresources.%s: nvidia.com/gpu %v must equal parallelism.gpusPerNode, %d" $at $kind $named $gpus) -}}
{{- end -}}
{{- if $v.gpusFromClaims -}}
{{- fail (printf "%sresources.%s: nvidia.com/gpu %v conflicts with gpusFromClaims, which takes GPUs from claims; remove one" $at $kind $named) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.gpusFromClaims (eq $gpus 0) -}}
{{- fail (printf "%sgpusFromClaims: parallelism.gpusPerNode 0 is for CPUs; set it to the number of GPUs in the claim" $at) -}}
{{- end -}}
{{- if and $v.gpusFromClaims (not $v.resources.claims) -}}
{{- fail (printf "%sgpusFromClaims: resources.claims must name the claim with the GPUs" $at) -}}
{{- end -}}
{{- range $v.resources.claims -}}
{{- $claim := .name -}}
{{- $known := false -}}
{{- range $v.resourceClaims }}{{ if eq .name $claim }}{{ $known = true }}{{ end }}{{ end -}}
{{- if not $known -}}
{{- fail (printf "%sresources.claims: %q is not in resourceClaims" $at $claim) -}}
{{- end -}}
{{- end -}}
{{- include "ropeswitch.checkDecodeContext" (dict "at" $at "parallelism" $p "plan" $v.plan) -}}
{{- if and $v.plan.kvCapacity (gt (int64 $v.maxModelLen) (int64 $v.plan.kvCapacity)) -}}
{{- fail (printf "%smaxModelLen: %d tokens exceed plan.kvCapacity: the KV memory of a replica holds %d; run ropeswitch plan for that length" $at (int64 $v.maxModelLen) (int64 $v.plan.kvCapacity)) -}}
{{- end -}}
{{- if and $v.plan.kvCapacity (not $v.maxModelLen) -}}
{{- fail (printf "%smaxModelLen: 0 means the end of the ladder, which may exceed plan.kvCapacity, %d tokens; set a length" $at (int64 $v.plan.kvCapacity)) -}}
{{- end -}}
{{- include "ropeswitch.checkModel" . -}}
{{- include "ropeswitch.checkLadder" (dict "at" $at "values" $v) -}}
{{- $needed := add $v.preStopSeconds $v.server.shutdownTimeout 30 -}}
{{- if le (int $v.terminationGracePeriodSeconds) (int $needed) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d must exceed %d: preStopSeconds %d + %sserver.shutdownTimeout %d + 30 for the engine to stop" (int $v.terminationGracePeriodSeconds) $needed (int $v.preStopSeconds) $at (int $v.server.shutdownTimeout)) -}}
{{- end -}}
{{- include "ropeswitch.checkOwn" (dict "at" $at "pod" .) -}}
{{- range $name, $part := dict "apiKeys" $v.apiKeys "tls" $v.tls -}}
{{- if and $part.existingSecret (not $part.enabled) -}}
{{- fail (printf "%s.existingSecret: %q, but %s.enabled is false" $name $part.existingSecret $name) -}}
{{- end -}}
{{- end -}}
{{- if regexMatch "^[^a-z]|[^-a-z0-9]" (include "ropeswitch.fullname" .) -}}
{{- fail (printf "fullnameOverride: %q, the resulting name, is not valid for a service: it must begin with a letter and contain only lower-case letters, digits and dashes" (include "ropeswitch.fullname" .)) -}}
{{- end -}}
{{- with $v.metrics.serviceMonitor -}}
{{- if gt (include "ropeswitch.milliseconds" .scrapeTimeout | float64) (include "ropeswitch.milliseconds" .interval | float64) -}}
{{- fail (printf "metrics.serviceMonitor.scrapeTimeout: %s must be at most the interval, %s" .scrapeTimeout .interval) -}}
{{- end -}}
{{- end -}}
{{- if and $v.apiKeys.enabled (not $v.apiKeys.existingSecret) -}}
{{- fail "apiKeys.existingSecret: apiKeys.enabled needs the name of the secret with the keys" -}}
{{- end -}}
{{- if and $v.tls.enabled (not $v.tls.existingSecret) -}}
{{- fail "tls.existingSecret: tls.enabled needs the name of a secret with tls.crt and tls.key" -}}
{{- end -}}
{{- range $name, $file := dict "factors" $v.factors "chatTemplate" $v.chatTemplate -}}
{{- if and $file.content $file.existingConfigMap -}}
{{- fail (printf "%s.existingConfigMap: %q conflicts with %s.content; set only one" $name $file.existingConfigMap $name) -}}
{{- end -}}
{{- end -}}
{{- if and (eq (print $v.updateStrategy.maxSurge | trimSuffix "%") "0") (eq (print $v.updateStrategy.maxUnavailable | trimSuffix "%") "0") -}}
{{- fail "updateStrategy: maxSurge and maxUnavailable are both 0, so no pod could ever be replaced; set one above 0" -}}
{{- end -}}
{{- include "ropeswitch.checkScaling" (dict "at" $at "scaling" $v.autoscaling) -}}
{{- include "ropeswitch.checkLoadTest" . -}}
{{- if and (include "ropeswitch.autoscaled" .) (gt (int $p.dataParallelReplicas) (int $v.autoscaling.minReplicas)) -}}
{{- fail (printf "%sparallelism.dataParallelReplicas: %d must be at most autoscaling.minReplicas, %d, from which autoscaling starts" $at (int $p.dataParallelReplicas) (int $v.autoscaling.minReplicas)) -}}
{{- end -}}
{{- range $v.publicPaths -}}
{{- if and (or $v.ingress.enabled $v.gateway.enabled) $v.apiKeys.enabled (not $v.metrics.key.existingSecret) (or (eq . "/") (hasPrefix "/metrics" .)) -}}
{{- fail (printf "publicPaths: %q would make /metrics public, which needs no key; leave it out, or set metrics.key.existingSecret" .) -}}
{{- end -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
{{- fail "ingress.hosts: ingress.enabled needs a host" -}}
{{- end -}}
{{- if and $v.gateway.enabled $v.tls.enabled -}}
{{- fail "gateway.enabled: a gateway speaks plain HTTP to the servers, which tls.enabled restricts to TLS; terminate TLS at the gateway instead" -}}
{{- end -}}
{{- with $v.inferencePool -}}
{{- if and .enabled (not .endpointPicker.service) -}}
{{- fail "inferencePool.endpointPicker.service: inferencePool.enabled needs the service of the endpoint picker" -}}
{{- end -}}
{{- if and .enabled $v.longPool.enabled -}}
{{- fail "inferencePool.enabled: an InferencePool has one picker for all its pods, but longPool.enabled creates two pools; enable only one of them" -}}
{{- end -}}
{{- if and .enabled (or $v.tls.enabled $v.metrics.key.existingSecret) -}}
{{- fail "inferencePool.enabled: the endpoint picker reads /metrics over plain HTTP without a key, but tls.enabled or metrics.key.existingSecret is set" -}}
{{- end -}}
{{- if and .objectives (not .enabled) -}}
{{- fail "inferencePool.objectives: objectives without an InferencePool; set inferencePool.enabled" -}}
{{- end -}}
{{- end -}}
{{- if and $v.gateway.enabled (not $v.gateway.parentRefs) -}}
{{- fail "gateway.parentRefs: gateway.enabled needs the gateway that the route belongs to" -}}
{{- end -}}
{{- end -}}

{{- define "ropeswitch.milliseconds" -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- mul (trimSuffix $unit . | int64) (get (dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000) $unit) -}}
{{- end -}}

{{/* User additions to a pod must not duplicate the chart's parts, and flags must not contradict the values. */}}
{{- define "ropeswitch.checkOwn" -}}
{{- $v := .pod.Values -}}
{{- $containers := list "ropeswitch" -}}
{{- if eq (include "ropeswitch.source" .pod) "objectStore" }}{{ $containers = append $containers "model" }}{{ end -}}
{{- range concat $v.server.extraContainers $v.server.extraInitContainers }}{{ $containers = append $containers .name }}{{ end -}}
{{- $volumes := list -}}
{{- range include "ropeswitch.volumes" .pod | fromYamlArray }}{{ $volumes = append $volumes .name }}{{ end -}}
{{- $paths := list -}}
{{- range include "ropeswitch.volumeMounts" .pod | fromYamlArray }}{{ $paths = append $paths .mountPath }}{{ end -}}
{{- $variables := list -}}
{{- range $v.server.extraEnv }}{{ $variables = append $variables .name }}{{ end -}}
{{- $at := .at -}}
{{- range $what, $names := dict "extraContainers and extraInitContainers" $containers "extraVolumes" $volumes "extraVolumeMounts" $paths "extraEnv" $variables -}}
{{- $seen := dict -}}
{{- range $names -}}
{{- if hasKey $seen . -}}
{{- fail (printf "%sserver.%s: %q appears twice in the pod" $at $what .) -}}
{{- end -}}
{{- $_ := set $seen . true -}}
{{- end -}}
{{- end -}}
{{- $flags := dict "--port" "server.port" "--api-server-count" "server.apiServers" "--shutdown-timeout" "server.shutdownTimeout" "--max-body-bytes" "server.maxBodyMiB" "--served-model-name" "servedModelName" "--factors" "factors" "--ladder" "ladder" "--native-window" "nativeWindow" "--ladder-policy" "ladderPolicy" "--ladder-aliases" "ladderAliases" "--chat-template" "chatTemplate" "--max-model-len" "maxModelLen" "--max-num-seqs" "maxNumSeqs" "--gpu-memory-utilization" "gpuMemoryUtilization" "--kv-cache-dtype" "kvCacheDtype" "--tensor-parallel-size" "parallelism.tensor" "--decode-context-parallel-size" "parallelism.decodeContext" "--pipeline-parallel-size" "parallelism.pipeline" "--data-parallel-size" "parallelism.dataParallelReplicas" "--nnodes" "parallelism.nodes" "--node-rank" "parallelism.nodes" "--master-addr" "parallelism.nodes" "--headless" "parallelism.nodes" "--api-key-file" "apiKeys" "--metrics-key-file" "metrics.key" "--ssl-certfile" "tls" "--ssl-keyfile" "tls" -}}
{{- $gone := dict "--allow-ladder-updates" "a ladder is fixed at startup, so change ladder or factors and upgrade the release" "--requests-per-minute-per-key" "limit rates in a gateway" "--max-concurrent-per-key" "use --max-sequences-per-key and --max-tokens-per-key" -}}
{{- range $v.server.extraArgs -}}
{{- $flag := splitList "=" . | first | replace "_" "-" -}}
{{- if hasKey $flags $flag -}}
{{- fail (printf "%sserver.extraArgs: %q is set by %s" $at . (get $flags $flag)) -}}
{{- end -}}
{{- if hasKey $gone $flag -}}
{{- fail (printf "%sserver.extraArgs: %q is no flag of the server any more; %s" $at . (get $gone $flag)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* vLLM's rules for decode context parallel; those on the model's heads apply only if the plan has the heads. */}}
{{- define "ropeswitch.checkDecodeContext" -}}
{{- $tensor := int .parallelism.tensor -}}
{{- $decode := int .parallelism.decodeContext -}}
{{- $heads := int .plan.kvHeads -}}
{{- $queries := int .plan.queriesPerKvHead -}}
{{- $at := printf "%sparallelism.decodeContext: %d" .at $decode -}}
{{- if gt $decode 1 -}}
{{- if mod $tensor $decode -}}
{{- fail (printf "%s must divide parallelism.tensor, %d, whose ranks it regroups" $at $tensor) -}}
{{- end -}}
{{- if and $heads (le $tensor $heads) -}}
{{- fail (printf "%s: parallelism.tensor %d does not replicate the model's %d KV heads, so it must be 1" $at $tensor $heads) -}}
{{- end -}}
{{- if and $heads (gt $decode (int (div $tensor $heads))) -}}
{{- fail (printf "%s: parallelism.tensor %d makes only %d copies of each of the model's %d KV heads, which it must not exceed" $at $tensor (div $tensor $heads) $heads) -}}
{{- end -}}
{{- if and $queries (mod $queries $decode) -}}
{{- fail (printf "%s must divide the model's %d query heads of each KV head" $at $queries) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ropeswitch.checkModel" -}}
{{- $v := .Values -}}
{{- $type := $v.modelSource.type -}}
{{- $cache := $v.modelSource.cache -}}
{{- if and (ne $type "hub") (not $v.model) -}}
{{- fail (printf "model: modelSource.type %s needs the name for clients" $type) -}}
{{- end -}}
{{- if and (eq $type "hub") $v.model (not (regexMatch "^[A-Za-z0-9][-A-Za-z0-9._]*(/[-A-Za-z0-9._]+)?$" $v.model)) -}}
{{- fail (printf "model: %q is not a name on the hub; for a folder, use modelSource.type pvc or objectStore" $v.model) -}}
{{- end -}}
{{- if and (eq $type "pvc") (not $v.modelSource.pvc.claimName) -}}
{{- fail "modelSource.pvc.claimName: modelSource.type pvc needs the claim with the model" -}}
{{- end -}}
{{- if and (eq $type "objectStore") (not $v.modelSource.objectStore.uri) -}}
{{- fail "modelSource.objectStore.uri: modelSource.type objectStore needs the address of the model's folder" -}}
{{- end -}}
{{- with $v.modelSource.objectStore -}}
{{- if and (eq $type "objectStore") .endpoint (not (hasPrefix "s3://" .uri)) -}}
{{- fail (printf "modelSource.objectStore.endpoint: %q works only with s3:// addresses, not %q" .endpoint .uri) -}}
{{- end -}}
{{- end -}}
{{- if and $cache.create $cache.existingClaim -}}
{{- fail (printf "modelSource.cache.existingClaim: %q conflicts with modelSource.cache.create; set only one" $cache.existingClaim) -}}
{{- end -}}
{{- $pods := mul $v.parallelism.nodes $v.parallelism.dataParallelReplicas -}}
{{- if or $v.autoscaling.hpa.enabled $v.autoscaling.keda.enabled -}}
{{- $pods = mul $v.parallelism.nodes $v.autoscaling.maxReplicas -}}
{{- end -}}
{{- $surge := ne (print $v.updateStrategy.maxSurge | trimSuffix "%") "0" -}}
{{- if and $cache.create (ne $cache.accessMode "ReadWriteMany") (or $v.longPool.enabled $surge) -}}
{{- fail (printf "modelSource.cache.accessMode: %s allows only one node, but a second pool or a surge pod may run on another; use ReadWriteMany, or updateStrategy.maxSurge 0 without longPool" $cache.accessMode) -}}
{{- end -}}
{{- if and $cache.create (ne $cache.accessMode "ReadWriteMany") (gt (int $pods) 1) -}}
{{- fail (printf "modelSource.cache.accessMode: %s allows only one node, but there are up to %d pods; use ReadWriteMany" $cache.accessMode $pods) -}}
{{- end -}}
{{- end -}}

{{/* Only one ladder, and a native window only with a rule that uses it. */}}
{{- define "ropeswitch.checkLadder" -}}
{{- $v := .values -}}
{{- if hasPrefix "file:" $v.ladder -}}
{{- fail (printf "%sladder: %q: pods do not have this file; pass its content with --set-file factors.content=FILE" .at $v.ladder) -}}
{{- end -}}
{{- if and $v.ladder (include "ropeswitch.hasFile" $v.factors) -}}
{{- fail (printf "%sladder: %q conflicts with the factor file (factors); set only one" .at $v.ladder) -}}
{{- end -}}
{{- if and $v.nativeWindow (include "ropeswitch.hasFile" $v.factors) -}}
{{- fail (printf "nativeWindow: %d conflicts with the factor file (factors), which defines its own lengths; set only one" (int64 $v.nativeWindow)) -}}
{{- end -}}
{{- if and $v.nativeWindow (eq $v.ladder "none") -}}
{{- fail (printf "nativeWindow: %d conflicts with %sladder none, which serves every length by the model's config; remove one" (int64 $v.nativeWindow) .at) -}}
{{- end -}}
{{- end -}}

{{- define "ropeswitch.checkScaling" -}}
{{- $s := .scaling -}}
{{- if and $s.hpa.enabled $s.keda.enabled -}}
{{- fail (printf "%sautoscaling: hpa.enabled and keda.enabled: two autoscalers would undo each other's work; enable only one" .at) -}}
{{- end -}}
{{- if and $s.keda.enabled (not $s.keda.serverAddress) -}}
{{- fail (printf "%sautoscaling.keda.serverAddress: keda.enabled needs the address of Prometheus" .at) -}}
{{- end -}}
{{- if and $s.keda.authModes (not $s.keda.authentication) -}}
{{- fail (printf "%sautoscaling.keda.authModes: %q needs autoscaling.keda.authentication, the TriggerAuthentication with the credentials" .at $s.keda.authModes) -}}
{{- end -}}
{{- if gt (int $s.minReplicas) (int $s.maxReplicas) -}}
{{- fail (printf "%sautoscaling.minReplicas: %d must be at most maxReplicas, %d" .at (int $s.minReplicas) (int $s.maxReplicas)) -}}
{{- end -}}
{{- end -}}
