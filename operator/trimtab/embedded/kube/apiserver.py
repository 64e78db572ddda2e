"""kube-apiserver for one embedded control plane: TLS, RBAC and client certificates as in a real cluster."""

from __future__ import annotations

import http.client
from pathlib import Path

from trimtab.embedded.child import Command
from trimtab.embedded.ports import LOOPBACK
from trimtab.embedded.server import EmbeddedServer
from trimtab.fabric.tls import ClientTls
from trimtab.kube.certificates import KUBELET_CLIENT, CertificateAuthority, service_account_key

_FRONT_PROXY = "front-proxy-client"


class EmbeddedApiServer(EmbeddedServer):
    """The API server alone: no scheduler, no controllers, no garbage collection."""

    name = "kube-apiserver"
    port_names = ("https",)
    start_timeout_s = 90.0

    def __init__(
        self,
        data_folder: Path,
        *,
        program: Path,
        etcd_url: str,
        authority: CertificateAuthority,
        front_proxy_authority: CertificateAuthority,
        supervise: bool = True,
    ) -> None:
        super().__init__(data_folder, supervise=supervise)
        self._program = program
        self._etcd_url = etcd_url
        self._authority = authority
        self._front_proxy_authority = front_proxy_authority

    @property
    def service_account_key_file(self) -> Path:
        return self.data_folder / "service-accounts.key"

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self.ports['https']}"

    def command(self) -> Command:
        ca_certificate, _ = self._authority.pair.write(self.data_folder, "ca")
        certificate, key = self._authority.server(LOOPBACK).write(self.data_folder, "server")
        kubelet_client = self._authority.client(user=KUBELET_CLIENT, groups=())
        kubelet_certificate, kubelet_key = kubelet_client.write(self.data_folder, "kubelet-client")
        service_accounts = self.service_account_key_file
        if not service_accounts.exists():
            service_accounts.touch(mode=0o600)
            service_accounts.write_bytes(service_account_key())
        return Command(
            arguments=[
                str(self._program),
                f"--etcd-servers={self._etcd_url}",
                f"--bind-address={LOOPBACK}",
                f"--advertise-address={LOOPBACK}",
                f"--secure-port={self.ports['https']}",
                f"--cert-dir={self.data_folder}",
                f"--tls-cert-file={certificate}",
                f"--tls-private-key-file={key}",
                f"--client-ca-file={ca_certificate}",
                f"--service-account-key-file={service_accounts}",
                f"--service-account-signing-key-file={service_accounts}",
                "--service-account-issuer=https://kubernetes.default.svc",
                # How it reaches a node's logs, where there is one: see trimtab.devcluster.node.
                f"--kubelet-client-certificate={kubelet_certificate}",
                f"--kubelet-client-key={kubelet_key}",
                f"--kubelet-certificate-authority={ca_certificate}",
                "--kubelet-preferred-address-types=InternalIP",
                *self._aggregation(),
                "--service-cluster-ip-range=10.0.0.0/24",
                "--authorization-mode=RBAC",
                "--anonymous-auth=false",
                # It demands of every pod a service account, which an API server without controllers does not have.
                "--disable-admission-plugins=ServiceAccount",
                "--allow-privileged=true",
                "--endpoint-reconciler-type=none",
            ],
            environment={"HOME": str(self.data_folder)},
            log_file=self.log_file,
            folder=self.data_folder,
        )

    def _aggregation(self) -> list[str]:
        """An APIService's server is told by the front proxy who asks, and trusts no other to say it."""
        authority, _ = self._front_proxy_authority.pair.write(self.data_folder, "front-proxy-ca")
        client = self._front_proxy_authority.client(user=_FRONT_PROXY, groups=())
        certificate, key = client.write(self.data_folder, "front-proxy-client")
        return [
            f"--requestheader-client-ca-file={authority}",
            f"--requestheader-allowed-names={_FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={certificate}",
            f"--proxy-client-key-file={key}",
        ]

    def probe(self) -> bool:
        probe = self._authority.client(user="trimtab-probe", groups=("system:masters",))
        tls = ClientTls(authority=self.data_folder / "ca.crt", certificate=probe.certificate, key=probe.key)
        connection = http.client.HTTPSConnection(LOOPBACK, self.ports["https"], timeout=5, context=tls.context())
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        finally:
            connection.close()
