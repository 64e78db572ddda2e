{{- /* Called with (list root kind name): what a binding says beside its metadata. */ -}}
{{- define "trimtab.binding" -}}
{{- $root := index . 0 -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ index . 1 }}
  name: {{ index . 2 }}
subjects:
  - kind: ServiceAccount
    name: {{ include "trimtab.serviceAccount" $root }}
    namespace: {{ $root.Release.Namespace }}
{{- end -}}
