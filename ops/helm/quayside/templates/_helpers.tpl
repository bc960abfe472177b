{{- define "quayside.name" -}}
{{- if contains "quayside" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-quayside" (.Release.Name | trunc 43 | trimSuffix "-") }}{{ end -}}
{{- end }}

{{- define "quayside.selector" -}}
app.kubernetes.io/name: quayside
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "quayside.labels" -}}
{{ include "quayside.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "quayside.ports" -}}
- { name: http, containerPort: 3444 }
{{- if .Values.stomp.port }}
- { name: stomp, containerPort: {{ .Values.stomp.port }} }
{{- end }}
{{- if .Values.amqp.port }}
- { name: amqp, containerPort: {{ .Values.amqp.port }} }
{{- end }}
{{- end }}

{{- define "quayside.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" (ne .root.Values.tls.secretName "") }}
{{- end }}

{{/* A user or a namespace as a part of a variable's name: what the environment cannot carry stands in the file. */}}
{{- define "quayside.part" -}}
{{- if not (regexMatch "^[A-Za-z0-9_-]+$" .) }}{{ fail (printf "%q cannot be a part of a variable's name. Allowed: letters, digits, _ and -." .) }}{{ end -}}
{{- if contains "__" . }}{{ fail (printf "%q has two underscores in a row, which separate the parts of a variable's name." .) }}{{ end -}}
{{ . }}
{{- end }}

{{- define "quayside.env" -}}
# The image listens on all addresses of the container, which requires TLS or this option.
- { name: QUAYSIDE_HTTP__INSECURE, value: {{ ternary "false" "true" (ne .Values.tls.secretName "") | quote }} }
# The port of the probes and the Service, whatever config.http.port is.
- { name: QUAYSIDE_HTTP__PORT, value: "3444" }
# A subfolder, because the server must own its data folder, and the volume itself is owned by root.
- { name: QUAYSIDE_DATA_DIR, value: /data/quayside }
{{- range $user, $key := .Values.secrets.users }}
- { name: QUAYSIDE_HTTP__USERS__{{ include "quayside.part" $user }}__PASSWORD_FILE, value: /run/secrets/quayside/{{ $key }} }
{{- end }}
{{- range $namespace, $key := .Values.secrets.urls }}
- { name: QUAYSIDE_NAMESPACES__{{ include "quayside.part" $namespace }}__URL_FILE, value: /run/secrets/quayside/{{ $key }} }
{{- end }}
{{- with .Values.secrets.consoleSecret }}
- { name: QUAYSIDE_CONSOLE__SECRET_FILE, value: /run/secrets/quayside/{{ . }} }
{{- end }}
{{- range $front, $options := dict "STOMP" .Values.stomp "AMQP" .Values.amqp }}
{{- if $options.port }}
- { name: QUAYSIDE_{{ $front }}__HOST, value: 0.0.0.0 }
- { name: QUAYSIDE_{{ $front }}__PORT, value: {{ $options.port | quote }} }
{{- if $.Values.tls.secretName }}
- { name: QUAYSIDE_{{ $front }}__TLS__CERT, value: /run/secrets/tls/tls.crt }
- { name: QUAYSIDE_{{ $front }}__TLS__KEY, value: /run/secrets/tls/tls.key }
{{- else }}
- { name: QUAYSIDE_{{ $front }}__INSECURE, value: "true" }
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.tls.secretName }}
- { name: QUAYSIDE_HTTP__TLS__CERT, value: /run/secrets/tls/tls.crt }
- { name: QUAYSIDE_HTTP__TLS__KEY, value: /run/secrets/tls/tls.key }
{{- end }}
{{- end }}

{{/* The pod of both shapes. */}}
{{- define "quayside.pod" -}}
metadata:
  labels:
    {{- include "quayside.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # A changed configuration restarts the nodes; changed secrets do not.
    checksum/config: {{ toYaml .Values.config | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "quayside.name" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: { type: RuntimeDefault }
  {{- if eq .Values.engine "server" }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "quayside.selector" . | nindent 10 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: quayside
      image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: ['--config', '/etc/quayside/quayside.yaml']
      env:
        {{- include "quayside.env" . | nindent 8 }}
      ports:
        {{- include "quayside.ports" . | nindent 8 }}
      # Startup may take long: a large write-ahead log is read before the server listens.
      startupProbe:
        {{- include "quayside.probe" (dict "path" "/livez" "root" .) | nindent 8 }}
        periodSeconds: 2
        failureThreshold: 150
      livenessProbe:
        {{- include "quayside.probe" (dict "path" "/livez" "root" .) | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 3
        failureThreshold: 6
      readinessProbe:
        {{- include "quayside.probe" (dict "path" "/readyz" "root" .) | nindent 8 }}
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 2
      lifecycle:
        preStop:
          exec: { command: [sleep, {{ .Values.preStopSeconds | quote }}] }
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: { drop: [ALL] }
      volumeMounts:
        - { name: data, mountPath: /data }
        - { name: config, mountPath: /etc/quayside, readOnly: true }
        - { name: secrets, mountPath: /run/secrets/quayside, readOnly: true }
        {{- if .Values.tls.secretName }}
        - { name: tls, mountPath: /run/secrets/tls, readOnly: true }
        {{- end }}
  volumes:
    {{- if eq .Values.engine "server" }}
    # Contains only data of this node, such as recent logins.
    - { name: data, emptyDir: {} }
    {{- end }}
    - name: config
      configMap: { name: {{ include "quayside.name" . }} }
    - name: secrets
      secret:
        secretName: {{ required "secrets.name is required: the Secret with the users' passwords." .Values.secrets.name }}
        defaultMode: 0440
    {{- if .Values.tls.secretName }}
    - name: tls
      secret: { secretName: {{ .Values.tls.secretName }}, defaultMode: 0440 }
    {{- end }}
{{- end }}
