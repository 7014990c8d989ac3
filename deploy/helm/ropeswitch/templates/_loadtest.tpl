{{/* Names of the workloads shipped with `ropeswitch loadtest`, as a YAML list. */}}
{{- define "ropeswitch.shippedWorkloads" -}}
[bursts, chat, crossing, documents, heavy, million, mixed, sessions, soak]
{{- end -}}

{{/* Shell: export the first of the keys, which the commands want in their environment. */}}
{{- define "ropeswitch.firstKey" -}}
OPENAI_API_KEY="$(sed -n 's/^[[:space:]]*//; s/[[:space:]]*$//; /^#/d; /./{p;q;}' "$API_KEY_FILE")" && export OPENAI_API_KEY
{{- end -}}

{{- define "ropeswitch.loadTestUrl" -}}
{{- $own := printf "%s://%s:%d" (include "ropeswitch.scheme" .) (include "ropeswitch.poolService" .) (int .Values.service.port) -}}
{{- default $own .Values.loadTest.url -}}
{{- end -}}

{{/*
Name of a load test's Job. A Job's pod template is immutable, so the name ends in a hash of the spec: a change creates a new Job.
Takes a pool's context with `workload`, as ropeswitch.loadTestSpec does.
*/}}
{{- define "ropeswitch.loadTestName" -}}
{{- $name := printf "%s-loadtest-%s-%s" (include "ropeswitch.fullname" .) (trimSuffix ".yaml" .workload) (include "ropeswitch.loadTestSpec" . | sha256sum | trunc 8) -}}
{{- if gt (len $name) 63 -}}
{{- fail (printf "loadTest.workloads: %q: the Job's name %s has %d characters, but at most 63 are allowed; shorten the workload's name or fullnameOverride" .workload $name (len $name)) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "ropeswitch.loadTestJob" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "ropeswitch.loadTestName" . }}
  labels:
    {{- include "ropeswitch.labels" . | nindent 4 }}
    app.kubernetes.io/component: loadtest
    ropeswitch.io/workload: {{ trimSuffix ".yaml" .workload | quote }}
spec:
  {{- include "ropeswitch.loadTestSpec" . | nindent 2 }}
{{- end -}}

{{- define "ropeswitch.loadTestSpec" -}}
{{- $v := .Values -}}
{{- $test := $v.loadTest -}}
# A pod that had to go is replaced by one that starts the test over; a test that came to its end is not made again.
backoffLimit: 0
podFailurePolicy:
  rules:
    # An assertion that does not hold, or bad input.
    - action: FailJob
      onExitCodes: {containerName: loadtest, operator: In, values: [1, 2]}
    # It was told to stop, while it sent requests or before.
    - action: Ignore
      onExitCodes: {containerName: loadtest, operator: In, values: [130, 143]}
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
{{- with $test.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ int64 . }}
{{- end }}
{{- with $test.ttlSecondsAfterFinished }}
ttlSecondsAfterFinished: {{ int64 . }}
{{- end }}
template:
  metadata:
    labels:
      {{- include "ropeswitch.selectorLabels" . | nindent 6 }}
      app.kubernetes.io/component: loadtest
      ropeswitch.io/workload: {{ trimSuffix ".yaml" .workload | quote }}
    annotations:
      ropeswitch.io/run: {{ int $test.run | quote }}
      {{- with $test.files }}
      checksum/files: {{ toJson . | sha256sum }}
      {{- end }}
  spec:
    restartPolicy: Never
    automountServiceAccountToken: false
    enableServiceLinks: false
    # The kernel keeps signals from a first process that has not asked for them, as this one before its first request.
    shareProcessNamespace: true
    # For the report of what has been measured.
    terminationGracePeriodSeconds: 120
    securityContext:
      {{- toYaml $v.podSecurityContext | nindent 6 }}
    {{- with $v.imagePullSecrets }}
    imagePullSecrets:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $test.priorityClassName }}
    priorityClassName: {{ . | quote }}
    {{- end }}
    {{- with $test.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $test.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $test.affinity }}
    affinity:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    containers:
      - name: loadtest
        image: {{ include "ropeswitch.image" . | quote }}
        imagePullPolicy: {{ $v.image.pullPolicy }}
        {{- if $v.apiKeys.enabled }}
        command:
          - sh
          - -c
          - {{ include "ropeswitch.firstKey" . }} && exec ropeswitch "$@"
          - ropeswitch
        {{- else }}
        command: [ropeswitch]
        {{- end }}
        args:
          {{- include "ropeswitch.loadTestArgs" . | nindent 10 }}
        env:
          # Libraries ask for the user's name, and the image knows none of this number.
          - {name: USER, value: ropeswitch}
          - {name: HF_HUB_OFFLINE, value: "1"}
          - name: JOB_NAME
            valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}
          {{- if $v.apiKeys.enabled }}
          - {name: API_KEY_FILE, value: {{ print "/etc/ropeswitch/keys/" $v.apiKeys.key | quote }}}
          {{- end }}
        securityContext:
          {{- toYaml $v.securityContext | nindent 10 }}
        resources:
          {{- toYaml $test.resources | nindent 10 }}
        volumeMounts:
          - {name: tmp, mountPath: /tmp}
          - {name: cache, mountPath: /cache}
          - {name: results, mountPath: /results}
          {{- range $name, $_ := include "ropeswitch.loadTestVolumes" . | fromYaml }}
          - {name: {{ $name }}, mountPath: /etc/ropeswitch/{{ $name }}, readOnly: true}
          {{- end }}
    volumes:
      - name: tmp
        emptyDir: {sizeLimit: {{ $v.scratch.sizeLimit }}}
      - name: cache
        emptyDir: {sizeLimit: {{ $v.scratch.sizeLimit }}}
      - name: results
        {{- if $test.results.existingClaim }}
        persistentVolumeClaim: {claimName: {{ $test.results.existingClaim | quote }}}
        {{- else if $test.results.create }}
        persistentVolumeClaim: {claimName: {{ include "ropeswitch.fullname" . }}-loadtest}
        {{- else }}
        emptyDir: {sizeLimit: {{ $test.results.size }}}
        {{- end }}
      {{- range $name, $source := include "ropeswitch.loadTestVolumes" . | fromYaml }}
      - {{ merge (dict "name" $name) $source | toYaml | nindent 8 | trim }}
      {{- end }}
{{- end -}}

{{/* Volume sources of a load test's folders in /etc/ropeswitch, as a YAML map. */}}
{{- define "ropeswitch.loadTestVolumes" -}}
{{- $v := .Values -}}
{{- if $v.loadTest.files }}
loadtest:
  configMap: {name: {{ include "ropeswitch.fullname" . }}-loadtest}
{{- end }}
{{- if $v.apiKeys.enabled }}
keys:
  secret: {secretName: {{ $v.apiKeys.existingSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- with $v.loadTest.ca.existingSecret }}
# The secret may have the server's own key beside it.
ca:
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
    items: [{key: {{ $v.loadTest.ca.key | quote }}, path: ca.crt}]
{{- end }}
{{- end -}}

{{- define "ropeswitch.loadTestArgs" -}}
{{- $v := .Values -}}
{{- $test := $v.loadTest -}}
- loadtest
{{- if hasSuffix ".yaml" .workload }}
- {{ print "/etc/ropeswitch/loadtest/" .workload | quote }}
{{- else }}
- {{ .workload | quote }}
{{- end }}
- {{ print "--url=" (include "ropeswitch.loadTestUrl" .) | quote }}
{{- with $test.baseline }}
- {{ print "--baseline=" . | quote }}
{{- end }}
{{- if $test.ca.existingSecret }}
- --ca=/etc/ropeswitch/ca/ca.crt
{{- end }}
# As long as a server may take to start.
- --wait={{ int64 $v.probes.startup.seconds }}
- --out=/results/$(JOB_NAME)
{{- range concat $test.arguments (default list (get $test.argumentsByWorkload .workload)) }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "ropeswitch.checkLoadTest" -}}
{{- $test := .Values.loadTest -}}
{{- $shipped := include "ropeswitch.shippedWorkloads" . | fromYamlArray -}}
{{- $seen := dict -}}
{{- range $test.workloads -}}
{{- $base := trimSuffix ".yaml" . -}}
{{- if hasKey $seen $base -}}
{{- fail (printf "loadTest.workloads: %q conflicts with %q: their Jobs would be indistinguishable; rename one" . (get $seen $base)) -}}
{{- end -}}
{{- $_ := set $seen $base . -}}
{{- if and (hasSuffix ".yaml" .) (not (hasKey $test.files .)) -}}
{{- fail (printf "loadTest.workloads: %q is not a key of loadTest.files" .) -}}
{{- end -}}
{{- if and (not (hasSuffix ".yaml" .)) (not (has . $shipped)) -}}
{{- fail (printf "loadTest.workloads: %q is not one of %s; your own workloads are keys of loadTest.files that end in .yaml" . (join ", " $shipped)) -}}
{{- end -}}
{{- end -}}
{{- $flags := dict "--url" "loadTest.url" "--baseline" "loadTest.baseline" "--ca" "loadTest.ca" "--wait" "probes.startup.seconds" "--out" "loadTest.results" -}}
{{- $lists := dict "arguments" $test.arguments -}}
{{- range $workload, $arguments := $test.argumentsByWorkload -}}
{{- if not (has $workload $test.workloads) -}}
{{- fail (printf "loadTest.argumentsByWorkload: %q is not in loadTest.workloads" $workload) -}}
{{- end -}}
{{- $_ := set $lists (print "argumentsByWorkload." $workload) $arguments -}}
{{- end -}}
{{- range $where, $arguments := $lists -}}
{{- range $arguments -}}
{{- $flag := splitList "=" . | first -}}
{{- if hasKey $flags $flag -}}
{{- fail (printf "loadTest.%s: %q is set by %s" $where . (get $flags $flag)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $results := $test.results -}}
{{- if and $results.create $results.existingClaim -}}
{{- fail (printf "loadTest.results.existingClaim: %q conflicts with loadTest.results.create; set only one" $results.existingClaim) -}}
{{- end -}}
{{- if and $results.create (eq $results.accessMode "ReadWriteOnce") (gt (len $test.workloads) 1) -}}
{{- fail (printf "loadTest.results.accessMode: ReadWriteOnce allows only one node, but there are %d Jobs; use ReadWriteOncePod to run them one by one, or ReadWriteMany to run them at once" (len $test.workloads)) -}}
{{- end -}}
{{- end -}}
