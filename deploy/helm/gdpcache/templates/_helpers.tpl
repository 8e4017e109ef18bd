{{- define "gdpcache.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gdpcache.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gdpcache.labels" -}}
{{ include "gdpcache.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "gdpcache.socket" -}}
/run/gdpcache/gdpcache.sock
{{- end -}}

{{/* Kubernetes's own gRPC probes know no TLS; the Unix socket needs none. */}}
{{- define "gdpcache.readyProbe" -}}
{{- if .Values.tls.enabled -}}
exec:
  command: [/usr/bin/gdpcache, health, --server, "unix:{{ include "gdpcache.socket" . }}"]
{{- else -}}
grpc:
  port: {{ .Values.service.port }}
  service: gdpcache.v1.StateCache
{{- end -}}
{{- end -}}

{{- define "gdpcache.aliveProbe" -}}
{{- if .Values.tls.enabled -}}
exec:
  command: [/usr/bin/gdpcache, health, --alive, --server, "unix:{{ include "gdpcache.socket" . }}"]
{{- else -}}
grpc:
  port: {{ .Values.service.port }}
{{- end -}}
{{- end -}}

{{/* Strings in protobuf text format take the escapes of JSON. */}}
{{- define "gdpcache.config" -}}
listen: "0.0.0.0:{{ .Values.service.port }}"
unix: {{ include "gdpcache.socket" . | quote }}
backend: {{ ternary "cuda" "cpu" (gt (int .Values.gpus) 0) | quote }}
{{- range $field, $value := .Values.config }}
{{ $field }}: {{ $value | toJson }}
{{- end }}
{{- if .Values.tls.enabled }}
tls_certificate: "/etc/gdpcache-tls/tls.crt"
tls_key: "/etc/gdpcache-tls/tls.key"
{{- if .Values.tls.requireClientCertificates }}
tls_client_ca: "/etc/gdpcache-tls/ca.crt"
{{- end }}
{{- else }}
allow_insecure: true
{{- end }}
{{- if .Values.tokens.secretName }}
{{- if not .Values.identities }}
{{- fail "tokens.secretName needs identities: tokens stand for them" }}
{{- end }}
token_file: "/etc/gdpcache-tokens/tokens"
{{- end }}
{{- if and .Values.identities (not .Values.tls.enabled) }}
{{- fail "identities need tls.enabled: tokens do not travel in clear text" }}
{{- end }}
{{- if and .Values.identities (not .Values.tokens.secretName) (not .Values.tls.requireClientCertificates) }}
{{- fail "identities need tokens.secretName or tls.requireClientCertificates: nobody could show to be one" }}
{{- end }}
{{- range .Values.identities }}
identities { name: {{ .name | toJson }} tenant: {{ .tenant | toJson }} permissions: [{{ join ", " .permissions }}] }
{{- end }}
{{- if .Values.metrics.enabled }}
metrics: "0.0.0.0:{{ .Values.metrics.port }}"
{{- end }}
{{- with .Values.snapshots.deviceMemory }}
snapshot_device_memory: {{ . | quote }}
{{- end }}
{{- with .Values.snapshots.hostMemory }}
snapshot_host_memory: {{ . | quote }}
{{- end }}
{{- if .Values.snapshots.disk.enabled }}
snapshot_directory: "/var/lib/gdpcache/snapshots"
{{- end }}
{{- range .Values.caches }}
caches { {{ . }} }
{{- end }}
{{- end -}}
