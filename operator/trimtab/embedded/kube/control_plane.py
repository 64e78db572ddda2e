"""etcd and kube-apiserver as one thing to start and stop; any number of them side by side."""

from __future__ import annotations

import base64
import datetime
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from trimtab.embedded.kube.apiserver import EmbeddedApiServer
from trimtab.embedded.kube.assets import ControlPlaneAssets
from trimtab.embedded.kube.etcd import EmbeddedEtcd
from trimtab.embedded.ports import LOOPBACK
from trimtab.kube.certificates import CertificateAuthority, KeyPair

_KUBECTL_TIMEOUT_S = 120.0


class KubectlError(RuntimeError):
    """kubectl failed; the message carries what it wrote to stderr."""


class ControlPlane:
    """A Kubernetes API of its own, isolated from every other by ports, certificates and data folder."""

    def __init__(self, data_folder: Path, *, assets: ControlPlaneAssets, supervise: bool = True) -> None:
        self.data_folder = data_folder.resolve()
        self.assets = assets
        self._supervise = supervise
        self.etcd = EmbeddedEtcd(self.data_folder / "etcd", program=assets.etcd, supervise=supervise)
        self._apiserver: EmbeddedApiServer | None = None
        self._authority: CertificateAuthority | None = None

    @property
    def apiserver(self) -> EmbeddedApiServer:
        if self._apiserver is None:
            raise RuntimeError("the control plane is not started")
        return self._apiserver

    def start(self) -> Self:
        self.data_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._authority = self._load_authority("ca")
        self.etcd.start()
        self._apiserver = EmbeddedApiServer(
            self.data_folder / "apiserver",
            program=self.assets.apiserver,
            etcd_url=self.etcd.url,
            authority=self._authority,
            front_proxy_authority=self._load_authority("front-proxy-ca"),
            supervise=self._supervise,
        )
        try:
            self._apiserver.start()
        except BaseException:
            self.etcd.stop()
            raise
        return self

    def stop(self) -> None:
        # The API server first: with etcd gone it hangs in its shutdown until SIGKILL.
        if self._apiserver is not None:
            self._apiserver.stop()
        self.etcd.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kubeconfig(self, *, user: str = "admin", groups: tuple[str, ...] = ("system:masters",)) -> Path:
        """A kubeconfig for the user, certificates inside, rewritten at every call as the port may have changed."""
        if self._authority is None:
            raise RuntimeError("the control plane is not started")
        path = self.data_folder / f"{user.replace(':', '_').replace('/', '_')}.kubeconfig"
        path.touch(mode=0o600)
        content = _kubeconfig(
            server=self.apiserver.url,
            authority=self._authority.pair,
            client=self._authority.client(user=user, groups=groups),
        )
        path.write_text(yaml.safe_dump(content))
        return path

    def serving_certificate(self, *, user: str, folder: Path, groups: tuple[str, ...] = ()) -> tuple[Path, Path]:
        """The certificate and key of a server on loopback, such as a node that the API server fetches logs from."""
        if self._authority is None:
            raise RuntimeError("the control plane is not started")
        pair = self._authority.server(LOOPBACK, user=user, groups=groups)
        return pair.write(folder, "serving")

    @property
    def authority_file(self) -> Path:
        return self.data_folder / "ca.crt"

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, kubeconfig: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the real kubectl against this control plane."""
        completed = subprocess.run(
            [str(self.assets.kubectl), "--kubeconfig", str(kubeconfig or self.kubeconfig()), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_KUBECTL_TIMEOUT_S,
            env={"HOME": str(self.data_folder)},
        )
        if check and completed.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {completed.stderr.strip()}")
        return completed

    def install(self, definitions: Sequence[dict[str, Any]]) -> None:
        """Apply CustomResourceDefinitions and wait until the API server serves them."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump_all(definitions))
        names = [f"crd/{definition['metadata']['name']}" for definition in definitions]
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)

    def _load_authority(self, name: str) -> CertificateAuthority:
        now = datetime.datetime.now(datetime.UTC)
        certificate, key = self.data_folder / f"{name}.crt", self.data_folder / f"{name}.key"
        if certificate.exists() and key.exists():
            return CertificateAuthority(KeyPair(certificate=certificate.read_bytes(), key=key.read_bytes()), now=now)
        authority = CertificateAuthority.create(name=f"trimtab-embedded-{name}", now=now)
        authority.pair.write(self.data_folder, name)
        return authority


def _kubeconfig(*, server: str, authority: KeyPair, client: KeyPair) -> dict[str, Any]:
    def encoded(value: bytes) -> str:
        return base64.b64encode(value).decode()

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "trimtab",
                "cluster": {"server": server, "certificate-authority-data": encoded(authority.certificate)},
            }
        ],
        "users": [
            {
                "name": "user",
                "user": {
                    "client-certificate-data": encoded(client.certificate),
                    "client-key-data": encoded(client.key),
                },
            }
        ],
        "contexts": [{"name": "trimtab", "context": {"cluster": "trimtab", "user": "user"}}],
        "current-context": "trimtab",
    }
