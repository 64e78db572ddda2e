{{- define "trimtab.nats.configuration" -}}
server_name: {{ include "trimtab.nats.name" . }}-0
listen: "0.0.0.0:4222"
http: "0.0.0.0:8222"  # for the kubelet
max_payload: 8MB
max_pending: 256MB
jetstream {
  store_dir: /data
  max_memory_store: {{ include "trimtab.mebibytes" .Values.nats.evaluation.memoryStore }}MiB
  # Nine tenths: publishers are told that it is full before the disk is.
  max_file_store: {{ div (mul 9 (include "trimtab.mebibytes" .Values.nats.evaluation.storage.size)) 10 }}MiB
  sync_interval: {{ .Values.nats.evaluation.syncInterval }}
}
tls {
  cert_file: /etc/nats/tls.crt
  key_file: /etc/nats/tls.key
  min_version: "1.2"
}
# Rights are part of the first line that a client sends.
max_control_line: 64KB
# Accounts of jobs, of which the operator tells it.
resolver {
  type: full
  dir: /data/accounts
  allow_delete: true
  interval: "2m"
}
# Whom to trust, from the Secret that the operator makes.
include trust.conf
{{- end -}}

{{- /* Called with a size such as 10Gi. */ -}}
{{- define "trimtab.bytes" -}}
{{- mul 1048576 (include "trimtab.mebibytes" .) -}}
{{- end -}}

{{- define "trimtab.mebibytes" -}}
{{- $units := dict "Mi" 1 "Gi" 1024 "Ti" 1048576 -}}
{{- mul (regexFind "^[0-9]+" .) (get $units (regexFind "[A-Z]i$" .)) -}}
{{- end -}}
