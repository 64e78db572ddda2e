{{- /* Pods of jobs, where this release looks after them. */ -}}
{{- define "trimtab.jobPods" -}}
- podSelector:
    matchExpressions: [{key: rl.trimtab.dev/job, operator: Exists}]
  {{- if .Values.namespaces }}
  namespaceSelector:
    matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: {{ toJson .Values.namespaces }}}]
  {{- else }}
  namespaceSelector: {}
  {{- end }}
{{- end -}}

{{- define "trimtab.operatorPods" -}}
- podSelector:
    matchLabels: {{- include "trimtab.selector" (list . "operator") | nindent 6 }}
{{- end -}}

{{- define "trimtab.scrapers" -}}
- namespaceSelector: {{- toYaml .Values.networkPolicy.scrapers.namespaceSelector | nindent 4 }}
  podSelector: {{- toYaml .Values.networkPolicy.scrapers.podSelector | nindent 4 }}
{{- end -}}

{{- /* Called with addresses of servers: their ports. */ -}}
{{- define "trimtab.portsOf" -}}
{{- $ports := list -}}
{{- range . -}}
{{- $usual := get (dict "http" "80" "https" "443") (urlParse .).scheme | default "4222" -}}
{{- $ports = append $ports (regexFind ":[0-9]+$" (urlParse .).host | trimPrefix ":" | default $usual | int) -}}
{{- end -}}
{{- $ports | uniq | sortAlpha | join "," -}}
{{- end -}}
