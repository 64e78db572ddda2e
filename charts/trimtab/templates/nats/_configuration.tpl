{{- /* Of the Service by which servers know one another, where there are several. */ -}}
{{- define "trimtab.nats.routes" -}}
{{- if gt (int .Values.nats.evaluation.replicas) 1 -}}
{{- include "trimtab.nats.name" . }}-routes
{{- end -}}
{{- end -}}

{{- define "trimtab.nats.configuration" -}}
{{- $routes := include "trimtab.nats.routes" . -}}
{{- $name := include "trimtab.nats.name" . -}}
server_name: {{ if $routes }}$POD_NAME{{ else }}{{ $name }}-0{{ end }}
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
{{- if $routes }}
cluster {
  name: {{ $name }}
  listen: "0.0.0.0:6222"
  # Clients keep to the Service: addresses of pods are in no certificate.
  no_advertise: true
  routes: [
    {{- range until (int .Values.nats.evaluation.replicas) }}
    "tls://{{ $name }}-{{ . }}.{{ $routes }}.{{ $.Release.Namespace }}.svc:6222"
    {{- end }}
  ]
  # Whoever has no certificate of this authority is no server of ours.
  tls {
    cert_file: /etc/nats/tls.crt
    key_file: /etc/nats/tls.key
    ca_file: /etc/nats/ca.crt
    verify: true
    min_version: "1.2"
  }
}
{{- end }}
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
