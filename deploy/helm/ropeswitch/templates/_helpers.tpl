{{- define "ropeswitch.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Room is left for the suffixes of pools, and for what a LeaderWorkerSet adds. */}}
{{- define "ropeswitch.fullname" -}}
{{- $name := include "ropeswitch.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ropeswitch.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ropeswitch.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ropeswitch.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "ropeswitch.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
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
