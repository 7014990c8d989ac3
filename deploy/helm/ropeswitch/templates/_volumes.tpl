{{- define "ropeswitch.volumeMounts" -}}
{{- $v := .Values -}}
{{- $source := include "ropeswitch.source" . -}}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /cache}
{{- if include "ropeswitch.sharedMemory" . }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- if include "ropeswitch.multiprocess" . }}
- {name: prometheus, mountPath: /run/prometheus}
{{- end }}
{{- if eq $source "hub" }}
- {name: model, mountPath: /cache/huggingface}
{{- else if eq $source "pvc" }}
- name: model
  mountPath: /model
  readOnly: true
  {{- with $v.modelSource.pvc.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
{{- else if eq $source "objectStore" }}
- name: model
  mountPath: /model
  subPath: {{ include "ropeswitch.downloadFolder" . }}
  readOnly: true
{{- end }}
{{- if include "ropeswitch.hasFile" $v.factors }}
- {name: factors, mountPath: /etc/ropeswitch/factors, readOnly: true}
{{- end }}
{{- if and (include "ropeswitch.hasFile" $v.chatTemplate) (not .worker) }}
- {name: chat-template, mountPath: /etc/ropeswitch/chat-template, readOnly: true}
{{- end }}
{{- if and $v.apiKeys.enabled (not .worker) }}
- {name: keys, mountPath: /etc/ropeswitch/keys, readOnly: true}
{{- end }}
{{- if and $v.metrics.key.existingSecret (not .worker) }}
- {name: metrics-key, mountPath: /etc/ropeswitch/metrics, readOnly: true}
{{- end }}
{{- if and $v.tls.enabled (not .worker) }}
- {name: tls, mountPath: /etc/ropeswitch/tls, readOnly: true}
{{- end }}
{{- with $v.server.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "ropeswitch.volumes" -}}
{{- $v := .Values -}}
{{- $source := include "ropeswitch.source" . -}}
- name: tmp
  emptyDir: {sizeLimit: {{ $v.scratch.sizeLimit }}}
- name: cache
  emptyDir: {sizeLimit: {{ $v.scratch.sizeLimit }}}
{{- if include "ropeswitch.sharedMemory" . }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ $v.shm.sizeLimit }}}
{{- end }}
{{- if include "ropeswitch.multiprocess" . }}
- name: prometheus
  emptyDir: {medium: Memory, sizeLimit: 256Mi}
{{- end }}
{{- if has $source (list "hub" "objectStore") }}
- name: model
  {{- if $v.modelSource.cache.existingClaim }}
  persistentVolumeClaim: {claimName: {{ $v.modelSource.cache.existingClaim | quote }}}
  {{- else if $v.modelSource.cache.create }}
  persistentVolumeClaim: {claimName: {{ include "ropeswitch.fullname" . }}-cache}
  {{- else }}
  emptyDir: {sizeLimit: {{ $v.modelSource.cache.size }}}
  {{- end }}
{{- else if eq $source "pvc" }}
- name: model
  persistentVolumeClaim: {claimName: {{ $v.modelSource.pvc.claimName | quote }}, readOnly: true}
{{- end }}
{{- if include "ropeswitch.hasFile" $v.factors }}
- name: factors
  configMap:
    name: {{ default (print (include "ropeswitch.fullname" .) "-factors") $v.factors.existingConfigMap | quote }}
    items:
      - {key: {{ $v.factors.key | quote }}, path: factors.json}
{{- end }}
{{- if and (include "ropeswitch.hasFile" $v.chatTemplate) (not .worker) }}
- name: chat-template
  configMap:
    name: {{ default (print (include "ropeswitch.fullname" .) "-chat-template") $v.chatTemplate.existingConfigMap | quote }}
    items:
      - {key: {{ $v.chatTemplate.key | quote }}, path: chat-template.jinja}
{{- end }}
{{- if and $v.apiKeys.enabled (not .worker) }}
- name: keys
  secret: {secretName: {{ $v.apiKeys.existingSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- if and $v.metrics.key.existingSecret (not .worker) }}
- name: metrics-key
  secret: {secretName: {{ $v.metrics.key.existingSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- if and $v.tls.enabled (not .worker) }}
- name: tls
  secret: {secretName: {{ $v.tls.existingSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- with $v.server.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A separate folder per address, so that models can share a claim and a new model starts clean. */}}
{{- define "ropeswitch.downloadFolder" -}}
{{- .Values.modelSource.objectStore.uri | sha256sum | trunc 16 -}}
{{- end -}}

{{/*
The init container that copies the model; it compares existing files by size and time instead of copying them. Pods that start
at once with an empty claim copy under separate names, so that none writes into another's partial file.
*/}}
{{- define "ropeswitch.download" -}}
{{- $v := .Values -}}
{{- $store := $v.modelSource.objectStore -}}
{{- $kind := get (dict "s3" "s3" "gs" "gcs" "az" "azureblob") (splitList "://" $store.uri | first) -}}
- name: model
  image: {{ $store.image | quote }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  command: [sh, -c, 'exec rclone "$@" --partial-suffix ".$(printf %.8s "$POD_UID").part"', rclone]
  args:
    - copy
    - {{ printf ":%s,env_auth=true:%s" $kind (splitList "://" $store.uri | last) | quote }}
    - /models/{{ include "ropeswitch.downloadFolder" . }}
    - --transfers=8
    - --stats=30s
    - --stats-one-line
    - --stats-log-level=NOTICE
  env:
    - {name: XDG_CONFIG_HOME, value: /tmp}
    - name: POD_UID
      valueFrom: {fieldRef: {fieldPath: metadata.uid}}
    {{- with $store.endpoint }}
    - {name: RCLONE_S3_ENDPOINT, value: {{ . | quote }}}
    {{- end }}
  {{- with $store.credentialsSecret }}
  envFrom:
    - secretRef: {name: {{ . | quote }}}
  {{- end }}
  securityContext:
    {{- toYaml $v.securityContext | nindent 4 }}
  resources:
    {{- include "ropeswitch.limited" (dict "resources" $store.resources "limit" 2048 "request" 256) | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: model, mountPath: /models}
{{- end -}}
