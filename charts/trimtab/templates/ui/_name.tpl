{{- define "trimtab.ui.name" -}}{{ include "trimtab.fullname" . }}-ui{{- end -}}

{{- /* What it may read, and nothing else. */ -}}
{{- define "trimtab.ui.rules" -}}
- apiGroups: [rl.trimtab.dev]
  resources: [rljobs]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
{{- end -}}

{{- /* Called with (list root kind name). */ -}}
{{- define "trimtab.ui.binding" -}}
{{- $root := index . 0 -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ index . 1 }}
  name: {{ index . 2 }}
subjects:
  - kind: ServiceAccount
    name: {{ include "trimtab.ui.name" $root }}
    namespace: {{ $root.Release.Namespace }}
{{- end -}}
