{{- define "trimtab.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 39 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 39 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 39 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.operator.name" -}}{{ include "trimtab.fullname" . }}-operator{{- end -}}
{{- define "trimtab.nats.name" -}}{{ include "trimtab.fullname" . }}-nats{{- end -}}
{{- /* Made by the operator: it belongs to the streams and not to the release. */ -}}
{{- define "trimtab.nats.accountsSecret" -}}{{ include "trimtab.nats.name" . }}-accounts{{- end -}}
{{- /* Made by the operator: jobs outlive a release. */ -}}
{{- define "trimtab.jobKeysSecret" -}}{{ include "trimtab.operator.name" . }}-job-keys{{- end -}}
{{- define "trimtab.objectStore.name" -}}{{ include "trimtab.fullname" . }}-object-store{{- end -}}

{{- /* What has no namespace must not collide with another release of the same name. */ -}}
{{- define "trimtab.clusterName" -}}{{ .Release.Namespace }}-{{ include "trimtab.fullname" . }}{{- end -}}

{{- define "trimtab.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "trimtab.operator.name" .) .Values.serviceAccount.name }}
{{- else -}}
{{ required "serviceAccount.name: needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- /* Called with (list . "component"). */ -}}
{{- define "trimtab.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "trimtab.labels" -}}
{{- $root := index . 0 -}}
{{ include "trimtab.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: trimtab
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* Called with (list . image). */ -}}
{{- define "trimtab.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default $root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}
