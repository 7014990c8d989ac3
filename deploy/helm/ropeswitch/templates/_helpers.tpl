{{- define "ropeswitch.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 43 | trimSuffix "-" -}}
{{- end -}}

{{/*
Leaves room for `-long` and a group's number: a label of at most 63 characters holds the name of each StatefulSet that a
LeaderWorkerSet creates, plus a hash.
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
{{- /* commonLabels must not set the labels that distinguish services and their pods. */ -}}
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

{{/* Whether a file is given, as content or in a ConfigMap. Takes `factors` or `chatTemplate` of the values. */}}
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
