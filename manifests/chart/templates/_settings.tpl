{{/* The plugin's settings that values stand for, as environment variables. What is empty is the plugin's default. */}}
{{- define "scale-to-zero.settings" -}}
{{- if and .Values.wakeEndpoint.enabled .Values.operatorSocket.enabled -}}
{{- fail "wakeEndpoint.enabled is true, but in the operator's pod the plugin has no certificate" -}}
{{- end -}}
- name: LOG_LEVEL
  value: {{ .Values.logLevel }}
- name: SIDECAR_IMAGE
  value: {{ include "scale-to-zero.sidecarImage" . | quote }}
{{- range $name, $value := dict
  "SIDECAR_UPDATE" .Values.sidecar.update
  "SIDECAR_CPU_REQUEST" .Values.sidecar.resources.requests.cpu
  "SIDECAR_CPU_LIMIT" .Values.sidecar.resources.limits.cpu
  "SIDECAR_MEMORY_REQUEST" .Values.sidecar.resources.requests.memory
  "SIDECAR_MEMORY_LIMIT" .Values.sidecar.resources.limits.memory
  "SHORTEN_STARTUP_PROBES" (ternary "" "false" .Values.shortenStartupProbes)
  "DOZE_MEMORY_REQUEST" .Values.doze.memoryRequest
  "GATEWAY_PORTS" .Values.gateway.ports
  "GATEWAY_ALLOW" (join "," .Values.gateway.allow)
  "WAKE_TIMEOUT" .Values.gateway.wakeTimeout
  "WAKE_HIBERNATED_BY" (join "," .Values.gateway.wakeHibernatedBy)
  "WAKE_SOURCE_BURST" (int .Values.gateway.wakeSourceBurst)
  "WAKE_BURST" (int .Values.gateway.wakeBurst)
  "WAKE_RATE" (int .Values.gateway.wakeRate)
  "GATEWAY_HELD" (int .Values.gateway.held)
  "HANDOVER_WAIT" .Values.gateway.handoverWait
  "WAKE_ENDPOINT_ADDRESS" (ternary ":8443" "" .Values.wakeEndpoint.enabled)
  "GOMEMLIMIT" .Values.goMemoryLimit
  "DRAIN_TIMEOUT" (printf "%ds" (int .Values.gateway.drainSeconds))
  "CUSTOM_CNPG_GROUP" (ternary "" .Values.rbac.cnpgGroup (eq .Values.rbac.cnpgGroup "postgresql.cnpg.io"))
}}
{{- with $value }}
- name: {{ $name }}
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}
