{{/*
Whether the engine's processes communicate through /dev/shm: several ranks do, and on CPUs a single one too, with more than a
container's default 64 MiB.
*/}}
{{- define "ropeswitch.sharedMemory" -}}
{{- $p := .Values.parallelism -}}
{{- if or (gt (int (mul $p.tensor $p.pipeline)) 1) (eq (int $p.gpusPerNode) 0) -}}true{{- end -}}
{{- end -}}

{{/* Whether several API servers share their metrics through a folder. */}}
{{- define "ropeswitch.multiprocess" -}}
{{- if and (gt (int .Values.server.apiServers) 1) (not .worker) -}}true{{- end -}}
{{- end -}}

{{- define "ropeswitch.resources" -}}
{{- $v := .Values -}}
{{- $resources := deepCopy $v.resources -}}
{{- $gpus := int $v.parallelism.gpusPerNode -}}
{{- $limits := default dict $resources.limits -}}
{{- if and (gt $gpus 0) (not $v.gpusFromClaims) (not (include "ropeswitch.namesGpus" $limits)) -}}
{{- $_ := set $limits "nvidia.com/gpu" $gpus -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- $ranks := int (div (mul $v.parallelism.tensor $v.parallelism.pipeline) $v.parallelism.nodes) -}}
{{- /* GPUs: pinned token IDs take 4 bytes each, rounded up to a power of two. CPUs: weights and KV cache are in this memory. */ -}}
{{- $ids := div (mul 8 (int64 $v.maxModelLen) (default 1024 $v.maxNumSeqs | int64)) 1048576 -}}
{{- $limit := ternary (add 16384 (mul $ranks (add 8192 $ids))) (add 4096 (mul $ranks 4096)) (gt $gpus 0) -}}
{{- if and (eq $gpus 0) $v.model }}{{ $limit = 65536 }}{{ end -}}
{{- include "ropeswitch.limited" (dict "resources" $resources "limit" $limit "request" (mul $ranks 2048)) -}}
{{- end -}}

{{/*
Resources with a memory limit of `limit` Mi, or of the memory they request if that is more, unless they have a limit. A request of
`request` Mi comes with it: without one, Kubernetes would request the whole limit.
*/}}
{{- define "ropeswitch.limited" -}}
{{- $resources := deepCopy .resources -}}
{{- $limits := default dict $resources.limits -}}
{{- $requests := default dict $resources.requests -}}
{{- if not (hasKey $limits "memory") -}}
{{- $_ := set $limits "memory" (printf "%dMi" (int64 .limit)) -}}
{{- if not (hasKey $requests "memory") -}}
{{- $_ := set $requests "memory" (printf "%dMi" (int64 .request)) -}}
{{- else if gt (include "ropeswitch.mebibytes" $requests.memory | float64) (float64 .limit) -}}
{{- $_ := set $limits "memory" $requests.memory -}}
{{- end -}}
{{- $_ := set $resources "limits" $limits -}}
{{- $_ := set $resources "requests" $requests -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "ropeswitch.mebibytes" -}}
{{- $unit := regexFind "[A-Za-z]*$" (print .) -}}
{{- $sizes := dict "m" 0.001 "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- divf (mulf (print . | trimSuffix $unit | float64) (get $sizes $unit)) 1048576.0 -}}
{{- end -}}

{{/* Whether resources list GPUs, whole ones or slices. */}}
{{- define "ropeswitch.namesGpus" -}}
{{- range $name, $_ := . }}{{ if hasPrefix "nvidia.com/" $name }}true{{ end }}{{ end -}}
{{- end -}}

{{- define "ropeswitch.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- if eq .scheme "https" }}
  scheme: HTTPS
  {{- end }}
{{- end -}}

{{/* Metadata of a pod, without the chart's version, so that a new version alone replaces no pods. Takes a pool's context with `worker`. */}}
{{- define "ropeswitch.podMetadata" -}}
{{- $labels := include "ropeswitch.poolSelectorLabels" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/component" (ternary "worker" "server" (default false .worker)) -}}
{{- $annotations := dict "kubectl.kubernetes.io/default-container" "ropeswitch" -}}
{{- with .Values.factors.content }}{{ $_ := set $annotations "checksum/factors" (sha256sum .) }}{{ end -}}
{{- with .Values.chatTemplate.content }}{{ $_ := set $annotations "checksum/chat-template" (sha256sum .) }}{{ end -}}
labels:
  {{- merge $labels .Values.podLabels | toYaml | nindent 2 }}
annotations:
  {{- merge (deepCopy .Values.podAnnotations) $annotations | toYaml | nindent 2 }}
{{- end -}}

{{/* Spec of a pod. Takes a pool's context with `worker`. */}}
{{- define "ropeswitch.podSpec" -}}
{{- $v := .Values -}}
{{- $root := . -}}
{{- $source := include "ropeswitch.source" . -}}
{{- $worker := default false .worker -}}
serviceAccountName: {{ include "ropeswitch.serviceAccountName" . | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ int $v.terminationGracePeriodSeconds }}
securityContext:
  {{- toYaml $v.podSecurityContext | nindent 2 }}
{{- with $v.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $v.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with $v.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with $v.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if and $v.topologySpread (not $worker) }}
topologySpreadConstraints:
  {{- range $v.topologySpread }}
  - topologyKey: {{ .topologyKey | quote }}
    maxSkew: {{ int .maxSkew }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "ropeswitch.serverLabels" $root | nindent 8 }}
  {{- end }}
{{- end }}
{{- with $v.resourceClaims }}
resourceClaims:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or (eq $source "objectStore") $v.server.extraInitContainers }}
initContainers:
  {{- if eq $source "objectStore" }}
  {{- include "ropeswitch.download" . | nindent 2 }}
  {{- end }}
  {{- with $v.server.extraInitContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
containers:
  - name: ropeswitch
    image: {{ include "ropeswitch.image" . | quote }}
    imagePullPolicy: {{ $v.image.pullPolicy }}
    {{- if include "ropeswitch.multiprocess" . }}
    # Remove the metrics of an earlier run of the container, which would be counted again.
    command: [sh, -c, 'rm -rf "${PROMETHEUS_MULTIPROC_DIR:?}"/*; exec ropeswitch "$@"', ropeswitch]
    {{- else }}
    command: [ropeswitch]
    {{- end }}
    args:
      {{- include "ropeswitch.args" . | nindent 6 }}
    env:
      {{- include "ropeswitch.env" . | nindent 6 }}
    {{- with $v.server.extraEnvFrom }}
    envFrom:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if not $worker }}
    ports:
      - name: http
        containerPort: {{ int $v.server.port }}
    {{- $scheme := include "ropeswitch.scheme" . }}
    startupProbe:
      {{- include "ropeswitch.probe" (dict "path" "/health/ready" "scheme" $scheme) | nindent 6 }}
      periodSeconds: {{ int $v.probes.startup.periodSeconds }}
      timeoutSeconds: 5
      failureThreshold: {{ div (add $v.probes.startup.seconds $v.probes.startup.periodSeconds -1) $v.probes.startup.periodSeconds }}
    livenessProbe:
      {{- include "ropeswitch.probe" (dict "path" "/health/live" "scheme" $scheme) | nindent 6 }}
      {{- toYaml $v.probes.liveness | nindent 6 }}
    readinessProbe:
      {{- include "ropeswitch.probe" (dict "path" "/health/ready" "scheme" $scheme) | nindent 6 }}
      {{- toYaml $v.probes.readiness | nindent 6 }}
    {{- end }}
    lifecycle:
      preStop:
        {{- if $worker }}
        # Stay until the server has answered its requests in flight, but end with the process, which Kubernetes' own sleep would not.
        exec:
          command: [sleep, {{ add $v.preStopSeconds $v.server.shutdownTimeout 5 | quote }}]
        {{- else }}
        sleep:
          seconds: {{ int $v.preStopSeconds }}
        {{- end }}
    securityContext:
      {{- toYaml $v.securityContext | nindent 6 }}
    resources:
      {{- include "ropeswitch.resources" . | nindent 6 }}
    volumeMounts:
      {{- include "ropeswitch.volumeMounts" . | nindent 6 }}
  {{- with $v.server.extraContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumes:
  {{- include "ropeswitch.volumes" . | nindent 2 }}
{{- end -}}

{{/* The chart's variables that extraEnv does not override, then extraEnv: server-side apply accepts no two variables with one name. */}}
{{- define "ropeswitch.env" -}}
{{- $extra := .Values.server.extraEnv -}}
{{- $names := list -}}
{{- range $extra }}{{ $names = append $names .name }}{{ end -}}
{{- $all := list -}}
{{- range include "ropeswitch.ownEnv" . | fromYamlArray -}}
{{- if not (has .name $names) }}{{ $all = append $all . }}{{ end -}}
{{- end -}}
{{- toYaml (concat $all $extra) -}}
{{- end -}}

{{- define "ropeswitch.ownEnv" -}}
{{- $v := .Values -}}
# Libraries look up the user's name, and the image has none for this user id.
- {name: USER, value: ropeswitch}
{{- if eq (include "ropeswitch.source" .) "hub" }}
- {name: HF_HOME, value: /cache/huggingface}
{{- with $v.modelSource.hub.tokenSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ . | quote }}, key: {{ $v.modelSource.hub.tokenKey | quote }}}
{{- end }}
{{- else }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
{{- if include "ropeswitch.multiprocess" . }}
- {name: PROMETHEUS_MULTIPROC_DIR, value: /run/prometheus}
{{- end }}
{{- end -}}
