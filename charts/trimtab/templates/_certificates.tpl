{{- /*
A server's certificate and the authority behind it, as data of a Secret in JSON; called with (list root service routes),
the last the Service by which its pods know one another, or empty. The authority's key is not kept: nobody can issue
another.
*/ -}}
{{- define "trimtab.certificates" -}}
{{- $name := index . 1 -}}
{{- $inside := printf "%s.%s" $name (index . 0).Release.Namespace -}}
{{- $hosts := list $name $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside) -}}
{{- with index . 2 -}}
{{- $hosts = append $hosts (printf "*.%s.%s.svc" . (index $ 0).Release.Namespace) -}}
{{- end -}}
{{- $authority := genCAWithKey (printf "%s-ca" $name) 3650 (genPrivateKey "ecdsa") -}}
{{- $server := genSignedCertWithKey $name nil $hosts 3650 $authority (genPrivateKey "ecdsa") -}}
{{- toJson (dict "ca.crt" (b64enc $authority.Cert) "tls.crt" (b64enc $server.Cert) "tls.key" (b64enc $server.Key)) -}}
{{- end -}}
