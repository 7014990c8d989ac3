{{- define "ropeswitch.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 43 | trimSuffix "-" -}}
{{- end -}}

{{/*
Room is left for `-long` and a group's number: a label has the name of each StatefulSet that a LeaderWorkerSet makes, with a hash
behind it, in its 63 characters.
*/}}
{{- define "ropeswitch.fullname" -}}
{{- $name := include "ropeswitch.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 43 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 43 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 43 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ropeswitch.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ropeswitch.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "ropeswitch.labels" -}}
{{- $own := include "ropeswitch.selectorLabels" . | fromYaml -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- $_ := set $own "app.kubernetes.io/version" .Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service -}}
{{- /* What tells services and their pods apart is not for everyone. */ -}}
{{- toYaml (merge $own (omit (default dict .Values.commonLabels) "app.kubernetes.io/component" "ropeswitch.io/pool")) -}}
{{- end -}}

{{- define "ropeswitch.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- $cpu := ternary "-cpu" "" (eq (int .Values.parallelism.gpusPerNode) 0) -}}
{{- printf "%s:%s" $image.repository (default (print .Chart.AppVersion $cpu) $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "ropeswitch.serviceAccountName" -}}
{{- default (ternary (include "ropeswitch.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* Where the model comes from: bundled, hub, pvc or objectStore. */}}
{{- define "ropeswitch.source" -}}
{{- if .Values.model -}}{{ .Values.modelSource.type }}{{- else -}}bundled{{- end -}}
{{- end -}}

{{/* Whether there is a file, given as such or in a ConfigMap. Takes `factors` or `chatTemplate` of the values. */}}
{{- define "ropeswitch.hasFile" -}}
{{- if or .content .existingConfigMap -}}true{{- end -}}
{{- end -}}

{{- define "ropeswitch.scheme" -}}
{{- ternary "https" "http" .Values.tls.enabled -}}
{{- end -}}

{{- define "ropeswitch.maxBodyMiB" -}}
{{- $tokens := int64 .Values.maxModelLen -}}
{{- if .Values.server.maxBodyMiB -}}
{{- int64 .Values.server.maxBodyMiB -}}
{{- else -}}
{{- max 64 (div (add (mul 32 $tokens) 1048575) 1048576) -}}
{{- end -}}
{{- end -}}
