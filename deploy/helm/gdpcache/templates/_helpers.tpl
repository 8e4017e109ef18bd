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

{{/* Strings in protobuf text format take the escapes of JSON. */}}
{{- define "gdpcache.config" -}}
listen: "0.0.0.0:{{ .Values.service.port }}"
unix: {{ include "gdpcache.socket" . | quote }}
backend: {{ ternary "cuda" "cpu" (gt (int .Values.gpus) 0) | quote }}
{{- range $field, $value := .Values.config }}
{{ $field }}: {{ $value | toJson }}
{{- end }}
allow_insecure: true
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
