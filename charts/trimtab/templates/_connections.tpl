{{- /*
How NATS and object storage are reached: as settings, and as files of a projected volume at /trimtab/secrets. A file
named section__field is a setting; others are what settings point to (trimtab.fabric.settings).
*/ -}}

{{- /* A mistake in how values go together, which the schema cannot name well. */ -}}
{{- define "trimtab.checkConnections" -}}
{{- $nats := .Values.nats -}}
{{- if and $nats.evaluation.enabled $nats.existing.servers -}}
{{- fail "nats: existing.servers is given and evaluation.enabled is true; set nats.evaluation.enabled to false" -}}
{{- end -}}
{{- if not (or $nats.evaluation.enabled $nats.existing.servers) -}}
{{- fail "nats.existing.servers: needed when nats.evaluation.enabled is false, such as [tls://nats.example.org:4222]" -}}
{{- end -}}
{{- if and $nats.evaluation.enabled (gt (int .Values.jobs.streams.replicas) (int $nats.evaluation.replicas)) -}}
{{- fail (printf "jobs.streams.replicas: %d copies need as many servers; set nats.evaluation.replicas to 3, or it to %d" (int .Values.jobs.streams.replicas) (int $nats.evaluation.replicas)) -}}
{{- end -}}
{{- $store := .Values.objectStore -}}
{{- if and $store.evaluation.enabled (or $store.existing.endpoint $store.existing.secret.name) -}}
{{- fail "objectStore: existing is given and evaluation.enabled is true; set objectStore.evaluation.enabled to false" -}}
{{- end -}}
{{- include "trimtab.checkSecret" (list "nats.existing.secret" $nats.existing.secret) -}}
{{- include "trimtab.checkSecret" (list "objectStore.existing.secret" $store.existing.secret) -}}
{{- include "trimtab.checkSecret" (list "remote.nats.secret" .Values.remote.nats.secret) -}}
{{- include "trimtab.checkSecret" (list "remote.objectStore.secret" .Values.remote.objectStore.secret) -}}
{{- $home := $nats.existing.secret -}}
{{- if and $home.operatorSeed (or $home.user $home.password $home.credentials) -}}
{{- fail "nats.existing.secret: operatorSeed makes the users; leave user, password and credentials empty" -}}
{{- end -}}
{{- if and $home.operatorSeed (not $home.systemCredentials) -}}
{{- fail "nats.existing.secret.systemCredentials: needed, as operatorSeed signs accounts of which the server has to be told by a user of its system account" -}}
{{- end -}}
{{- if and $home.systemCredentials (not $home.operatorSeed) -}}
{{- fail "nats.existing.secret.operatorSeed: needed, as systemCredentials is for telling the server of accounts that it signs" -}}
{{- end -}}
{{- if and $nats.existing.sharedAccount (or $nats.evaluation.enabled $home.operatorSeed) -}}
{{- fail "nats.existing.sharedAccount: jobs have accounts of their own here; leave it empty" -}}
{{- end -}}
{{- if not (or $nats.evaluation.enabled $home.operatorSeed $nats.existing.sharedAccount) -}}
{{- fail "nats.existing.secret.operatorSeed: needed, so that each job has an account of its own; or set nats.existing.sharedAccount to all-pods-trust-one-another, and any pod of any job may read, forge and delete what the others have on NATS" -}}
{{- end -}}
{{- $far := .Values.remote.nats.secret -}}
{{- if and (not $nats.existing.sharedAccount) (or $far.user $far.password $far.credentials) -}}
{{- fail "remote.nats.secret: the operator makes the users of NATS, for other clusters too; leave user, password and credentials empty" -}}
{{- end -}}
{{- if and .Values.remote.nats.secret.name (not .Values.remote.nats.servers) -}}
{{- fail "remote.nats.servers: needed when remote.nats.secret is given" -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.checkSecret" -}}
{{- $path := index . 0 -}}
{{- $secret := index . 1 -}}
{{- range $field, $key := omit $secret "name" -}}
{{- if and $key (not $secret.name) -}}
{{- fail (printf "%s.name: needed, as %s.%s names a key in it" $path $path $field) -}}
{{- end -}}
{{- end -}}
{{- if and $secret.name (eq (join "" (values (omit $secret "name"))) "") -}}
{{- fail (printf "%s: name the keys to use of Secret %s" $path $secret.name) -}}
{{- end -}}
{{- end -}}

{{- /* Called with (list prefix connection), the connection as in nats.existing. */ -}}
{{- define "trimtab.natsSettings" -}}
{{- $prefix := index . 0 -}}
{{- $nats := index . 1 -}}
servers: {{ toJson $nats.servers }}
inbox_prefix: {{ $nats.inboxPrefix }}
{{- with $nats.secret.credentials }}
credentials_file: /trimtab/secrets/{{ $prefix }}-credentials
{{- end }}
{{- with $nats.secret.ca }}
tls_ca_file: /trimtab/secrets/{{ $prefix }}-ca.crt
{{- end }}
{{- with $nats.secret.certificate }}
tls_cert_file: /trimtab/secrets/{{ $prefix }}-tls.crt
{{- end }}
{{- with $nats.secret.key }}
tls_key_file: /trimtab/secrets/{{ $prefix }}-tls.key
{{- end }}
{{- end -}}

{{- /* Called with (list root prefix connection), the connection as in objectStore.existing. */ -}}
{{- define "trimtab.objectStoreSettings" -}}
{{- $root := index . 0 -}}
{{- $prefix := index . 1 -}}
{{- $store := index . 2 -}}
bucket: {{ $root.Values.objectStore.bucket | quote }}
prefix: {{ $root.Values.objectStore.prefix | quote }}
region: {{ $store.region | quote }}
{{- with $store.endpoint }}
endpoint_url: {{ . | quote }}
{{- end }}
{{- with $store.secret.ca }}
ca_file: /trimtab/secrets/{{ $prefix }}-ca.crt
{{- end }}
{{- end -}}

{{- /* Called with (list section prefix secret): a source of the projected volume. */ -}}
{{- define "trimtab.secretSource" -}}
{{- $section := index . 0 -}}
{{- $prefix := index . 1 -}}
{{- $secret := index . 2 -}}
{{- $files := dict
  "operatorSeed" (printf "%s_accounts__seed" $section)
  "systemCredentials" (printf "%s-system-credentials" $prefix)
  "user" (printf "%s__user" $section)
  "password" (printf "%s__password" $section)
  "accessKeyId" (printf "%s__access_key_id" $section)
  "secretAccessKey" (printf "%s__secret_access_key" $section)
  "credentials" (printf "%s-credentials" $prefix)
  "ca" (printf "%s-ca.crt" $prefix)
  "certificate" (printf "%s-tls.crt" $prefix)
  "key" (printf "%s-tls.key" $prefix)
-}}
{{- if $secret.name -}}
- secret:
    name: {{ $secret.name }}
    items:
      {{- range $field, $key := omit $secret "name" }}
      {{- if $key }}
      - {key: {{ $key | quote }}, path: {{ get $files $field }}}
      {{- end }}
      {{- end }}
{{- end -}}
{{- end -}}

{{- /* The home connections as JSON, so that evaluation servers are described like existing ones. */ -}}
{{- define "trimtab.homeNats" -}}
{{- if .Values.nats.evaluation.enabled -}}
{{- $name := include "trimtab.nats.name" . -}}
{{- $server := printf "tls://%s.%s.svc:4222" $name .Release.Namespace -}}
{{- $secret := dict "name" $name "ca" "ca.crt" -}}
{{- toJson (dict "servers" (list $server) "inboxPrefix" "_INBOX" "secret" $secret) -}}
{{- else -}}
{{- toJson .Values.nats.existing -}}
{{- end -}}
{{- end -}}

{{- /* By which jobs have accounts; empty where all pods dial with one user. */ -}}
{{- define "trimtab.natsAccountsSettings" -}}
{{- $nats := .Values.nats -}}
{{- if $nats.evaluation.enabled -}}
secret:
  name: {{ include "trimtab.nats.accountsSecret" . }}
  namespace: {{ .Release.Namespace }}
limits:
  storage_bytes: {{ include "trimtab.bytes" $nats.evaluation.jobStorage }}
{{- else if $nats.existing.secret.operatorSeed -}}
system_credentials_file: /trimtab/secrets/nats-system-credentials
limits:
  storage_bytes: {{ include "trimtab.bytes" $nats.existing.jobStorage }}
{{- end -}}
{{- end -}}

{{- /* How pods come by credentials of their own role; empty where all have the operator's. */ -}}
{{- define "trimtab.storageRoleSettings" -}}
{{- $sts := .Values.objectStore.existing.sts -}}
{{- if .Values.objectStore.evaluation.enabled -}}
sts: {role_arn: "arn:aws:iam::role/trimtab-jobs"}
datasets: {{ toJson .Values.objectStore.datasets }}
models: {{ toJson .Values.objectStore.models }}
{{- else if $sts.roleArn -}}
sts:
  role_arn: {{ $sts.roleArn | quote }}
  duration_s: {{ $sts.durationSeconds | int }}
  {{- with $sts.endpoint }}
  endpoint_url: {{ . | quote }}
  {{- end }}
datasets: {{ toJson .Values.objectStore.datasets }}
models: {{ toJson .Values.objectStore.models }}
{{- end -}}
{{- end -}}

{{- define "trimtab.homeObjectStore" -}}
{{- if .Values.objectStore.evaluation.enabled -}}
{{- $name := include "trimtab.objectStore.name" . -}}
{{- $endpoint := printf "https://%s.%s.svc:8333" $name .Release.Namespace -}}
{{- $secret := dict "name" $name "accessKeyId" "accessKeyId" "secretAccessKey" "secretAccessKey" "ca" "ca.crt" -}}
{{- toJson (dict "endpoint" $endpoint "region" "us-east-1" "secret" $secret) -}}
{{- else -}}
{{- toJson .Values.objectStore.existing -}}
{{- end -}}
{{- end -}}

{{- /* Called with (list root role): the keys that were made for the role. */ -}}
{{- define "trimtab.storeRoleSource" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- if not $root.Values.objectStore.evaluation.enabled -}}
{{- include "trimtab.secretSource" (list (printf "storage_roles__%s" $role) $role (get $root.Values.objectStore.existing.roles $role)) -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.operator.secretSources" -}}
{{- $nats := fromJson (include "trimtab.homeNats" .) -}}
{{- $store := fromJson (include "trimtab.homeObjectStore" .) -}}
{{- $sources := list
  (include "trimtab.secretSource" (list "nats" "nats" $nats.secret))
  (include "trimtab.secretSource" (list "object_store" "object-store" $store.secret))
  (include "trimtab.storeRoleSource" (list . "rollout"))
  (include "trimtab.storeRoleSource" (list . "dataflow"))
  (include "trimtab.storeRoleSource" (list . "trainer"))
  (include "trimtab.storeRoleSource" (list . "tracking"))
  (include "trimtab.secretSource" (list "remote_nats" "remote-nats" .Values.remote.nats.secret))
  (include "trimtab.secretSource" (list "remote_object_store" "remote-object-store" .Values.remote.objectStore.secret))
-}}
{{- join "\n" (compact $sources) -}}
{{- end -}}
