"""How a cluster is reached, and as whom: a kubeconfig's context, or the service account of the pod we run in."""

from __future__ import annotations

import base64
import binascii
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trimtab.fabric.tls import ClientTls, Pem, TlsUnusable

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_REREAD_S = 60.0


class AccessError(Exception):
    """The configuration does not say how to reach a cluster; the message names the field and the fix."""


class TokenFile:
    """A bearer token that somebody else renews in its file, as a kubelet does."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at: float | None = None

    def __call__(self) -> str:
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
    token: Callable[[], str] | None = None
    """Called for each request, so that a renewed token is used."""
    namespace: str = "default"
    """The context's namespace, or that of the pod we run in."""


def load_access(kubeconfig: Path | None = None, *, context: str | None = None) -> ClusterAccess:
    """From the given file, else from KUBECONFIG, else the pod's service account, else ~/.kube/config."""
    if kubeconfig is None and os.environ.get("KUBECONFIG"):
        kubeconfig = Path(os.environ["KUBECONFIG"])
    if kubeconfig is None and (SERVICE_ACCOUNT_FOLDER / "token").exists():
        return in_cluster_access(os.environ)
    path = kubeconfig or Path.home() / ".kube" / "config"
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise AccessError(
            f"no cluster: {path} cannot be read ({error.strerror}); set KUBECONFIG to a kubeconfig"
        ) from None
    except yaml.YAMLError as error:
        raise AccessError(f"{path} is no YAML: {error}") from None
    return kubeconfig_access(content, context=context, folder=path.parent)


def in_cluster_access(environment: Mapping[str, str], *, folder: Path = SERVICE_ACCOUNT_FOLDER) -> ClusterAccess:
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise AccessError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is no pod")
    if ":" in host:
        host = f"[{host}]"
    namespace = folder / "namespace"
    return ClusterAccess(
        server=f"https://{host}:{port}",
        tls=_tls(authority=folder / "ca.crt"),
        token=TokenFile(folder / "token"),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def kubeconfig_access(
    content: Any, *, context: str | None = None, folder: Path | None = None, files_allowed: bool = True
) -> ClusterAccess:
    """Who and where a kubeconfig's context says. `files_allowed` is off for kubeconfigs that somebody else wrote, such
    as one in a Secret: a path in there would make us read our own disk for them."""
    if not isinstance(content, dict):
        raise AccessError("a kubeconfig is a mapping with clusters, users and contexts")
    wanted = context or content.get("current-context")
    if not wanted:
        raise AccessError("current-context: not set in the kubeconfig, and no context was asked for")
    chosen = _named(content, "contexts", wanted, field="context")
    cluster = _named(content, "clusters", chosen.get("cluster"), field="cluster")
    user = _named(content, "users", chosen.get("user"), field="user") if chosen.get("user") else {}
    for unsupported in ("exec", "auth-provider", "username"):
        if unsupported in user:
            raise AccessError(f"user.{unsupported}: not supported; use a client certificate or a token")
    if cluster.get("insecure-skip-tls-verify"):
        raise AccessError("cluster.insecure-skip-tls-verify: refused; give certificate-authority-data instead")
    server = str(cluster.get("server") or "")
    if not server.startswith("https://"):
        raise AccessError(f"cluster.server: {server!r} is no https:// address")

    def data(section: dict[str, Any], name: str) -> Pem | None:
        return _data(section, name, folder=folder, files_allowed=files_allowed)

    token: Callable[[], str] | None = None
    if user.get("token"):
        literal = str(user["token"])
        token = lambda: literal  # noqa: E731
    elif user.get("tokenFile"):
        if not files_allowed:
            raise AccessError("user.tokenFile: files are not allowed in this kubeconfig; give token")
        token = TokenFile((folder or Path()) / str(user["tokenFile"]))
    certificate, key = data(user, "client-certificate"), data(user, "client-key")
    if (certificate is None) != (key is None):
        raise AccessError("user.client-certificate and user.client-key: one is given without the other")
    return ClusterAccess(
        server=server.rstrip("/"),
        tls=_tls(
            authority=data(cluster, "certificate-authority"),
            certificate=certificate,
            key=key,
        ),
        token=token,
        namespace=str(chosen.get("namespace") or "default"),
    )


def _named(content: dict[str, Any], section: str, name: Any, *, field: str) -> dict[str, Any]:
    for entry in content.get(section) or ():
        if entry.get("name") == name:
            return dict(entry.get(field) or {})
    raise AccessError(f"{section}: the kubeconfig has none called {name!r}")


def _data(section: dict[str, Any], name: str, *, folder: Path | None, files_allowed: bool) -> Pem | None:
    """`NAME-data` in base64, else the file `NAME`, which may be renewed."""
    if encoded := section.get(f"{name}-data"):
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error:
            raise AccessError(f"{name}-data: is no base64") from None
    if not section.get(name):
        return None
    if not files_allowed:
        raise AccessError(f"{name}: files are not allowed in this kubeconfig; give {name}-data")
    return (folder or Path()) / str(section[name])


def _tls(*, authority: Pem | None, certificate: Pem | None = None, key: Pem | None = None) -> ClientTls:
    tls = ClientTls(authority=authority, certificate=certificate, key=key)
    try:
        tls.context()
    except TlsUnusable as error:
        raise AccessError(str(error)) from None
    return tls
