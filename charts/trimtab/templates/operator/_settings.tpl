{{- /* As trimtab.operator.settings.OperatorSettings reads them; nothing here is secret. */ -}}
{{- define "trimtab.operator.settings" -}}
{{- $nats := fromJson (include "trimtab.homeNats" .) -}}
{{- $store := fromJson (include "trimtab.homeObjectStore" .) -}}
{{- $remote := .Values.remote -}}
images:
  {{- range $role, $image := .Values.jobs.images }}
  {{ $role }}: {{ include "trimtab.image" (list $ $image) }}
  {{- end }}
{{- with .Values.imagePullSecrets }}
image_pull_secrets:
  {{- range . }}
  - {{ .name }}
  {{- end }}
{{- end }}
requests:
  {{- range $role, $amounts := .Values.jobs.requests }}
  {{ $role }}:
    {{- range $name, $amount := $amounts }}
    {{ $name }}: {{ $amount | quote }}
    {{- else }} {}
    {{- end }}
  {{- end }}
streams:
  replicas: {{ .Values.jobs.streams.replicas | int }}
  {{- with .Values.jobs.streams.maxBytes }}
  max_bytes: {{ include "trimtab.bytes" . }}
  {{- end }}
  {{- with .Values.jobs.streams.maxMessages }}
  max_messages: {{ . | int }}
  {{- end }}
service_account: {{ include "trimtab.serviceAccount" . }}
namespaces: {{ toJson .Values.namespaces }}
logs: {level: {{ .Values.operator.logLevel }}, format: json}
lease:
  name: {{ include "trimtab.operator.name" . }}
  namespace: {{ .Release.Namespace }}
  duration_s: {{ .Values.operator.leaseDurationSeconds | int }}
{{- if include "trimtab.admission.enabled" . }}
admission:
  {{- include "trimtab.admission.settings" . | nindent 2 }}
{{- end }}
workers: {{ .Values.operator.workers | int }}
calls_per_object: {{ .Values.operator.callsPerObject | int }}
actions_per_turn: {{ .Values.operator.actionsPerTurn | int }}
resync_s: {{ .Values.operator.resyncSeconds }}
report_interval_s: {{ .Values.operator.reportIntervalSeconds }}
deletion_deadline_s: {{ .Values.operator.deletionDeadlineSeconds }}
{{- with .Values.operator.agentEgress.allowedCidrs }}
agent_egress: {allowed_cidrs: {{ toJson . }}}
{{- end }}
{{- if and .Values.networkPolicy.enabled .Values.networkPolicy.jobs.enabled }}
job_network:
  dns_ports: {{ toJson .Values.networkPolicy.dnsPorts }}
  scrapers: {{ toJson .Values.networkPolicy.scrapers }}
  server_cidrs: {{ toJson .Values.networkPolicy.jobs.serverCidrs }}
  egress: {{ toJson .Values.networkPolicy.jobs.egress }}
{{- end }}
{{- $sync := ternary .Values.nats.evaluation.syncInterval .Values.nats.existing.syncInterval .Values.nats.evaluation.enabled }}
{{- with $sync }}
nats_sync_interval: {{ regexReplaceAll "^([0-9]+)s$" . "${1}" }}
{{- end }}
nats:
  {{- include "trimtab.natsSettings" (list "nats" $nats) | nindent 2 }}
{{- with include "trimtab.natsAccountsSettings" . }}
nats_accounts:
  {{- . | nindent 2 }}
{{- else }}
shared_nats_account: {{ .Values.nats.existing.sharedAccount }}
{{- end }}
object_store:
  {{- include "trimtab.objectStoreSettings" (list . "object-store" $store) | nindent 2 }}
{{- with include "trimtab.storageRoleSettings" . }}
storage_roles:
  {{- . | nindent 2 }}
{{- end }}
job_keys:
  secret: {name: {{ include "trimtab.jobKeysSecret" . }}, namespace: {{ .Release.Namespace }}}
{{- if $remote.nats.servers }}
remote_nats:
  {{- include "trimtab.natsSettings" (list "remote-nats" $remote.nats) | nindent 2 }}
{{- end }}
{{- if or $remote.objectStore.endpoint $remote.objectStore.secret.name }}
remote_object_store:
  {{- include "trimtab.objectStoreSettings" (list . "remote-object-store" $remote.objectStore) | nindent 2 }}
{{- end }}
{{- end -}}
