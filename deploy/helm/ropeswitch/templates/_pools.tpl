{{/* Override the values of one map with another's, in place; unlike mergeOverwrite, empty, zero and false values override too. */}}
{{- define "ropeswitch.overlay" -}}
{{- $onto := .onto -}}
{{- range $key, $value := .from -}}
{{- if and (kindIs "map" $value) (kindIs "map" (index $onto $key)) -}}
{{- include "ropeswitch.overlay" (dict "onto" (index $onto $key) "from" $value) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $_ := set $onto $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Render a template once per pool, with the pool's own values.
Takes: root, the chart's context; template, its name. The template's context also has `pool`, main or long.
*/}}
{{- define "ropeswitch.forPools" -}}
{{- $root := .root -}}
{{- $pools := dict "main" dict -}}
{{- if $root.Values.longPool.enabled -}}
{{- $_ := set $pools "long" $root.Values.longPool.values -}}
{{- end -}}
{{- range $pool, $differs := $pools }}
{{- $values := deepCopy $root.Values }}
{{- if eq $pool "long" }}
{{- $_ := set $values "plan" (dict "kvHeads" 0 "queriesPerKvHead" 0 "kvCapacity" 0) }}
{{- include "ropeswitch.overlay" (dict "onto" $values "from" $differs) }}
{{- /* The pool's own targets replace the first pool's instead of adding to them. */}}
{{- with $differs.autoscaling }}
{{- if or .queuedTokensPerReplica .queuedTokensPerReplicaByClass }}
{{- $_ := set $values.autoscaling "queuedTokensPerReplicaByClass" (default dict .queuedTokensPerReplicaByClass) }}
{{- end }}
{{- end }}
{{- end }}
{{- $context := dict "Values" $values "pool" $pool "Release" $root.Release "Chart" $root.Chart "Files" $root.Files "Template" $root.Template }}
{{- with include $.template $context | trim }}
---
{{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Name of a pool's workload; adding a second pool does not change the first one's. */}}
{{- define "ropeswitch.poolName" -}}
{{- include "ropeswitch.fullname" . }}{{ if eq .pool "long" }}-long{{ end -}}
{{- end -}}

{{/* Name of a pool's service. */}}
{{- define "ropeswitch.poolService" -}}
{{- include "ropeswitch.fullname" . }}{{ if .Values.longPool.enabled }}-{{ ternary "long" "short" (eq .pool "long") }}{{ end -}}
{{- end -}}

{{- define "ropeswitch.poolSelectorLabels" -}}
{{ include "ropeswitch.selectorLabels" . }}
ropeswitch.io/pool: {{ .pool }}
{{- end -}}

{{/* Labels of servers, which answer requests; the workers of a group do not. */}}
{{- define "ropeswitch.serverLabels" -}}
{{ include "ropeswitch.poolSelectorLabels" . }}
app.kubernetes.io/component: server
{{- end -}}

{{/* The largest body that any pool accepts, in MiB. Takes a pool's context. */}}
{{- define "ropeswitch.maxBodyOfPools" -}}
{{- $most := int64 (include "ropeswitch.maxBodyMiB" .) -}}
{{- if .Values.longPool.enabled -}}
{{- $long := deepCopy .Values -}}
{{- include "ropeswitch.overlay" (dict "onto" $long "from" .Values.longPool.values) -}}
{{- $most = max $most (int64 (include "ropeswitch.maxBodyMiB" (dict "Values" $long))) -}}
{{- end -}}
{{- $most -}}
{{- end -}}
