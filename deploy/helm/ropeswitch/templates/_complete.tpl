{{/*
Set the chart's default for each value that is missing: Helm removes what the user's values set to null, such as a section with only
comments below its name. files/defaults.yaml repeats values.yaml, which templates cannot read. Every template includes this first.
*/}}
{{- define "ropeswitch.complete" -}}
{{- /* All templates of a rendering share the values. */ -}}
{{- if not (hasKey .Values "complete") -}}
{{- include "ropeswitch.fill" (dict "onto" .Values "from" (.Files.Get "files/defaults.yaml" | fromYaml)) -}}
{{- include "ropeswitch.prune" .Values -}}
{{- $_ := set .Values "complete" true -}}
{{- end -}}
{{- end -}}

{{- /* Remove what is null from maps at any level: Kubernetes reads it as absent, and schemas of its objects do not allow it. */ -}}
{{- define "ropeswitch.prune" -}}
{{- range $key, $value := . -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $ $key -}}
{{- else if kindIs "map" $value -}}
{{- include "ropeswitch.prune" $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ropeswitch.fill" -}}
{{- $onto := .onto -}}
{{- /* In objects of Kubernetes' own, null removes a field on purpose. */ -}}
{{- $whole := list "podSecurityContext" "securityContext" "labels" "resources" -}}
{{- range $key, $value := .from -}}
{{- if kindIs "invalid" (index $onto $key) -}}
{{- $_ := set $onto $key $value -}}
{{- else if and (kindIs "map" $value) (not (has $key $whole)) -}}
{{- include "ropeswitch.fill" (dict "onto" (index $onto $key) "from" $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
