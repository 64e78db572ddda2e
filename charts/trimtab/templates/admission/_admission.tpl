{{- define "trimtab.admission.name" -}}{{ include "trimtab.fullname" . }}-admission{{- end -}}
{{- /* What has no namespace. */ -}}
{{- define "trimtab.admission.clusterName" -}}{{ include "trimtab.clusterName" . | trimPrefix "-" }}-admission{{- end -}}
{{- /* An operator of some namespaces has no right beyond them, so it cannot tell the API server of a certificate of its own. */ -}}
{{- define "trimtab.admission.enabled" -}}
{{- if and .Values.admission.enabled (or .Values.admission.certManager.enabled (not .Values.namespaces)) }}true{{ end -}}
{{- end -}}

{{- define "trimtab.admission.settings" -}}
{{- if .Values.admission.certManager.enabled -}}
certificate_folder: /trimtab/admission
{{- else }}
secret: {name: {{ include "trimtab.admission.name" . }}, namespace: {{ .Release.Namespace }}}
server_name: {{ include "trimtab.admission.name" . }}.{{ .Release.Namespace }}.svc
webhook: {{ include "trimtab.admission.clusterName" . }}
{{- end }}
{{- end -}}
