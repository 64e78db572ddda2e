"""How a cluster is reached, and as whom: a kubeconfig's context, or the service account of the pod we run in."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.fabric.tls import ClientTls, Pem, TlsUnusable

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_REREAD_S = 60.0

Token = Callable[[], Awaitable[str]]
"""A bearer token, asked for at each request, so that a renewed one is used."""


class AccessError(Exception):
    """The configuration does not say how to reach a cluster; the message names the field and the fix."""


class TokenFile:
    """A bearer token in a file that a kubelet, or another program, renews."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at: float | None = None

    async def __call__(self) -> str:
        now = self._clock()
        if self._read_at is None or now - self._read_at > _TOKEN_REREAD_S:
            try:
                self._token = self._path.read_text().strip()
            except OSError as error:
                raise AccessError(f"the token file {self._path} cannot be read: {error.strerror}") from None
            self._read_at = now
        return self._token


@dataclass(frozen=True, kw_only=True)
class ClusterAccess:
    server: str
    tls: ClientTls
    """Asked for a context at each request, so that a renewed authority is used."""
    token: Token | None = None
    namespace: str = "default"
    """The context's namespace, or that of the pod we run in."""
    server_name: str | None = None
    """The name in the server's certificate, where it is not that of the address."""
    proxy: str | None = None


def load_access(kubeconfig: Path | None = None, *, context: str | None = None) -> ClusterAccess:
    """From the given file, else from the files in KUBECONFIG, else the pod's service account, else ~/.kube/config."""
    files = os.environ.get("KUBECONFIG", "") if kubeconfig is None else str(kubeconfig)
    if not files and (SERVICE_ACCOUNT_FOLDER / "token").exists():
        return in_cluster_access(os.environ)
    # Kubernetes' client takes half a second to import, and a pod does without it.
    from trimtab.kube.own_kubeconfig import own_access

    return own_access(files or str(Path.home() / ".kube" / "config"), context=context)


def in_cluster_access(environment: Mapping[str, str], *, folder: Path = SERVICE_ACCOUNT_FOLDER) -> ClusterAccess:
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise AccessError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is no pod")
    if ":" in host:
        host = f"[{host}]"
    namespace = folder / "namespace"
    return ClusterAccess(
        server=f"https://{host}:{port}",
        tls=checked_tls(authority=folder / "ca.crt"),
        token=TokenFile(folder / "token"),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def fixed_token(value: str) -> Token:
    async def token() -> str:
        return value

    return token


def checked_server(server: Any, *, skips_verification: Any) -> str:
    if skips_verification:
        raise AccessError("cluster.insecure-skip-tls-verify: refused; give certificate-authority-data instead")
    if not isinstance(server, str) or not server.startswith("https://"):
        raise AccessError(f"cluster.server: {server!r} is no https:// address")
    return server.rstrip("/")


def checked_tls(*, authority: Pem | None, certificate: Pem | None = None, key: Pem | None = None) -> ClientTls:
    tls = ClientTls(authority=authority, certificate=certificate, key=key)
    try:
        tls.context()
    except TlsUnusable as error:
        raise AccessError(str(error)) from None
    return tls
