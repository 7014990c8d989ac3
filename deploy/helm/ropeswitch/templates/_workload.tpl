{{- define "ropeswitch.workload" -}}
{{- if gt (int .Values.parallelism.nodes) 1 -}}
{{ include "ropeswitch.group" . }}
{{- else -}}
{{ include "ropeswitch.deployment" . }}
{{- end -}}
{{- end -}}

{{- define "ropeswitch.autoscaled" -}}
{{- if or .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled -}}true{{- end -}}
{{- end -}}

{{- define "ropeswitch.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "ropeswitch.poolName" . }}
  labels:
    {{- include "ropeswitch.labels" . | nindent 4 }}
spec:
  {{- if not (include "ropeswitch.autoscaled" .) }}
  replicas: {{ int .Values.parallelism.dataParallelReplicas }}
  {{- end }}
  # A start may take as long as its probe allows without counting as a failure.
  progressDeadlineSeconds: {{ add .Values.probes.startup.seconds 600 }}
  selector:
    matchLabels:
      {{- include "ropeswitch.serverLabels" . | nindent 6 }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: {{ .Values.updateStrategy.maxSurge }}
      maxUnavailable: {{ .Values.updateStrategy.maxUnavailable }}
  template:
    metadata:
      {{- include "ropeswitch.podMetadata" . | nindent 6 }}
    spec:
      {{- include "ropeswitch.podSpec" . | nindent 6 }}
{{- end -}}

{{/* One group per replica: the leader serves, the workers compute; if one of them fails, all restart. */}}
{{- define "ropeswitch.group" -}}
{{- $worker := dict "worker" true "pool" .pool "Values" .Values "Release" .Release "Chart" .Chart -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {{ include "ropeswitch.poolName" . }}
  labels:
    {{- include "ropeswitch.labels" . | nindent 4 }}
  {{- with .Values.leaderWorkerSet.exclusiveTopologyKey }}
  annotations:
    leaderworkerset.sigs.k8s.io/exclusive-topology: {{ . | quote }}
  {{- end }}
spec:
  {{- if not (include "ropeswitch.autoscaled" .) }}
  replicas: {{ int .Values.parallelism.dataParallelReplicas }}
  {{- end }}
  startupPolicy: LeaderCreated
  # Otherwise the set needs a headless service with its own name, which is the chart's service, and workers would not find a leader
  # that is not ready.
  networkConfig: {subdomainPolicy: UniquePerReplica}
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration:
      maxSurge: {{ .Values.updateStrategy.maxSurge }}
      maxUnavailable: {{ .Values.updateStrategy.maxUnavailable }}
  leaderWorkerTemplate:
    size: {{ int .Values.parallelism.nodes }}
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      metadata:
        {{- include "ropeswitch.podMetadata" . | nindent 8 }}
      spec:
        {{- include "ropeswitch.podSpec" . | nindent 8 }}
    workerTemplate:
      metadata:
        {{- include "ropeswitch.podMetadata" $worker | nindent 8 }}
      spec:
        {{- include "ropeswitch.podSpec" $worker | nindent 8 }}
{{- end -}}
