{{/*
Arguments of `ropeswitch`, as a YAML list. Takes a pool's context with `worker`: true for the nodes of a group without the server.
*/}}
{{- define "ropeswitch.args" -}}
{{- $v := .Values -}}
{{- $p := $v.parallelism -}}
{{- $source := include "ropeswitch.source" . -}}
- serve
{{- if eq $source "hub" }}
- {{ $v.model | quote }}
{{- else if ne $source "bundled" }}
- /model
{{- end }}
{{- /* A plan for a folder has the folder's path, which differs in the pod. */}}
{{- $model := ternary (base $v.model) $v.model (regexMatch "^[./]" $v.model) }}
{{- $name := default (ternary $model "" (has $source (list "pvc" "objectStore"))) $v.servedModelName }}
{{- if $name }}
- --served-model-name
- {{ $name | quote }}
{{- end }}
{{- if eq $source "bundled" }}
- --enforce-eager
{{- end }}
{{- if include "ropeswitch.hasFile" $v.factors }}
- --factors
- /etc/ropeswitch/factors/factors.json
{{- end }}
{{- if $v.ladder }}
- --ladder
- {{ $v.ladder | quote }}
{{- end }}
{{- if $v.nativeWindow }}
- --native-window
- {{ int64 $v.nativeWindow | quote }}
{{- end }}
{{- if $v.ladderPolicy }}
- --ladder-policy
- {{ $v.ladderPolicy }}
{{- end }}
{{- if and (include "ropeswitch.hasFile" $v.chatTemplate) (not .worker) }}
- --chat-template
- /etc/ropeswitch/chat-template/chat-template.jinja
{{- end }}
{{- if $v.maxModelLen }}
- --max-model-len
- {{ int64 $v.maxModelLen | quote }}
{{- end }}
{{- if $v.maxNumSeqs }}
- --max-num-seqs
- {{ int64 $v.maxNumSeqs | quote }}
{{- end }}
{{- if $v.gpuMemoryUtilization }}
- --gpu-memory-utilization
- {{ $v.gpuMemoryUtilization | quote }}
{{- end }}
{{- if ne $v.kvCacheDtype "auto" }}
- --kv-cache-dtype
- {{ $v.kvCacheDtype | quote }}
{{- end }}
{{- range $flag, $size := dict "tensor" $p.tensor "decode-context" $p.decodeContext "pipeline" $p.pipeline }}
{{- if gt (int $size) 1 }}
- --{{ $flag }}-parallel-size
- {{ int $size | quote }}
{{- end }}
{{- end }}
{{- if gt (int $p.nodes) 1 }}
- --nnodes
- {{ int $p.nodes | quote }}
- --node-rank
- $(LWS_WORKER_INDEX)
- --master-addr
- $(LWS_LEADER_ADDRESS)
{{- end }}
{{- if .worker }}
- --headless
{{- else }}
- --port
- {{ int $v.server.port | quote }}
{{- if gt (int $v.server.apiServers) 1 }}
- --api-server-count
- {{ int $v.server.apiServers | quote }}
{{- end }}
{{- if $v.ladderAliases }}
- --ladder-aliases
{{- end }}
- --shutdown-timeout
- {{ int $v.server.shutdownTimeout | quote }}
{{- if $v.server.maxBodyMiB }}
- --max-body-bytes
- {{ int64 $v.server.maxBodyMiB }}M
{{- end }}
{{- if $v.apiKeys.enabled }}
- --api-key-file
- {{ print "/etc/ropeswitch/keys/" $v.apiKeys.key | quote }}
{{- end }}
{{- if $v.metrics.key.existingSecret }}
- --metrics-key-file
- {{ print "/etc/ropeswitch/metrics/" $v.metrics.key.key | quote }}
{{- end }}
{{- if $v.tls.enabled }}
- --ssl-certfile
- /etc/ropeswitch/tls/tls.crt
- --ssl-keyfile
- /etc/ropeswitch/tls/tls.key
- --enable-ssl-refresh
{{- end }}
{{- end }}
{{- range $v.server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}
