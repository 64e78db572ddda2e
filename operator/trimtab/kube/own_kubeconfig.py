"""The kubeconfigs of the person who runs us, read by Kubernetes' own client: several files, programs that print
credentials (EKS, GKE, AKS), OIDC. Only what our client cannot honour is refused, by the name of its field.

Messages of that client may quote a whole entry, credentials and all, so none of them is passed on.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import Configuration
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

from trimtab.fabric.daemon_thread import in_daemon_thread
from trimtab.fabric.tls import Pem
from trimtab.kube.access import AccessError, ClusterAccess, Token, TokenFile, checked_server, checked_tls

_LOGIN_S = 300.0
"""A program may ask a person to log in with a browser."""
_RENEWAL_S = 60.0
_ASKED_AGAIN_S = 60.0
"""The loader renews a token five minutes before it expires."""
_REFUSED_IN_USER = {
    "as": "impersonation is not supported; use the credentials of the account itself",
    "username": "passwords are not supported; use a token, a certificate or exec",
}


def own_access(files: str, *, context: str | None, login_s: float = _LOGIN_S) -> ClusterAccess:
    """`files` as in KUBECONFIG. Runs the user's program, if the context names one, and waits for it."""
    merged = _merged(files)
    wanted = context or _current_context(merged)
    chosen, _ = _entry(merged, "contexts", wanted, field="context")
    cluster, _ = _entry(merged, "clusters", chosen.get("cluster"), field="cluster")
    user, folder = _entry(merged, "users", chosen["user"], field="user") if chosen.get("user") else ({}, Path())
    _check_user(user)
    server = checked_server(cluster.get("server"), skips_verification=cluster.get("insecure-skip-tls-verify"))

    def load(within_s: float) -> _Loaded:
        return _load(merged, context=wanted, user=user, within_s=within_s)

    loaded = load(login_s)
    if "exec" in user and loaded.token() is None and loaded.certificate is None:
        raise AccessError(f"user.exec: {user['exec']['command']} printed no credentials; run it by hand to see why")
    return ClusterAccess(
        server=server,
        tls=checked_tls(authority=loaded.authority, certificate=loaded.certificate, key=loaded.key),
        token=_token(user, folder=folder, loaded=loaded, load=load),
        namespace=str(chosen.get("namespace") or "default"),
        server_name=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
    )


def _check_user(user: dict[str, Any]) -> None:
    for field, fix in _REFUSED_IN_USER.items():
        if user.get(field):
            raise AccessError(f"user.{field}: {fix}")
    if "exec" in user and not (isinstance(user["exec"], dict) and user["exec"].get("command")):
        raise AccessError("user.exec: give command and apiVersion")
    if bool(user.get("client-certificate") or user.get("client-certificate-data")) != bool(
        user.get("client-key") or user.get("client-key-data")
    ):
        raise AccessError("user.client-certificate and user.client-key: one is given without the other")


def _token(user: dict[str, Any], *, folder: Path, loaded: _Loaded, load: Callable[[float], _Loaded]) -> Token | None:
    if user.get("tokenFile") and not user.get("token"):
        return TokenFile(folder / str(user["tokenFile"]))
    if loaded.token() is None:
        return None
    # The loader renews what a program printed, when it is about to expire, but an OIDC token only as it loads.
    read = (lambda: load(_RENEWAL_S).token()) if "auth-provider" in user else loaded.token
    return _RenewedToken(read, clock=time.monotonic)


def _merged(files: str) -> Any:
    try:
        merged = KubeConfigMerger(files)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise AccessError(f"no cluster: {error.filename} cannot be read ({error.strerror})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{mark.name}, line {mark.line + 1}" if mark else files
        raise AccessError(f"{place}: is no YAML") from None
    except (ConfigException, AttributeError, KeyError, TypeError):
        raise AccessError(f"{files}: is no kubeconfig, a mapping with clusters, users and contexts") from None
    if merged.config is None:
        raise AccessError(f"no cluster: {files} cannot be read (no such file); set KUBECONFIG to a kubeconfig")
    return merged


def _current_context(merged: Any) -> str:
    """As kubectl has it: the first file that names one. The loader takes the last."""
    for content in merged.config_files.values():
        if content.get("current-context"):
            return str(content["current-context"])
    raise AccessError("current-context: not set in the kubeconfig, and no context was asked for")


def _entry(merged: Any, section: str, name: Any, *, field: str) -> tuple[dict[str, Any], Path]:
    """The entry's content, and the folder of the file it is in, to which its paths are relative."""
    for entry in merged.config.value[section]:
        if entry.value.get("name") == name and isinstance(content := entry.value.get(field), dict):
            return content, Path(entry.path).parent
    raise AccessError(f"{section}: the kubeconfig has none called {name!r}")


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    configuration: Configuration
    authority: Pem | None
    certificate: Pem | None
    key: Pem | None

    def token(self) -> str | None:
        return self.configuration.get_api_key_with_prefix("BearerToken")


def _load(merged: KubeConfigMerger, *, context: str, user: dict[str, Any], within_s: float) -> _Loaded:
    """In a thread that may be left behind: neither a program nor an identity provider is under our control."""
    configuration = Configuration()
    failures: list[Exception] = []
    with tempfile.TemporaryDirectory() as scratch:

        def load() -> None:
            try:
                loader = KubeConfigLoader(  # type: ignore[no-untyped-call]
                    merged.config,
                    active_context=context,
                    config_base_path=None,
                    config_persister=merged.save_changes,
                    temp_file_path=scratch,
                )
                loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
            except Exception as error:  # noqa: BLE001 - the loader raises whatever its libraries do; told below
                failures.append(error)

        thread = threading.Thread(target=load, name="kubeconfig", daemon=True)
        thread.start()
        thread.join(within_s)
        way = next((name for name in ("exec", "auth-provider") if name in user), "files")
        if thread.is_alive():
            raise AccessError(f"user.{way}: no credentials within {within_s:.0f} s; run kubectl once to log in")
        if failures:
            detail = f": {failures[0]}" if str(failures[0]).startswith("File does not exist") else ""
            raise AccessError(f"the kubeconfig cannot be used{detail}; kubectl config view shows what it says")
        return _Loaded(
            configuration=configuration,
            authority=_pem(configuration.ssl_ca_cert, scratch=scratch),
            certificate=_pem(configuration.cert_file, scratch=scratch),
            key=_pem(configuration.key_file, scratch=scratch),
        )


def _pem(path: str | None, *, scratch: str) -> Pem | None:
    """A file of the person's own is read at each dial, as it may be renewed. What the loader wrote is taken along."""
    if not path:
        return None
    file = Path(path)
    return file.read_bytes() if file.is_relative_to(scratch) else file


class _RenewedToken:
    def __init__(self, read: Callable[[], str | None], *, clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._token = read()
        self._asked_at = clock()
        self._asking = asyncio.Lock()

    async def __call__(self) -> str:
        async with self._asking:
            if self._clock() - self._asked_at > _ASKED_AGAIN_S:
                async with asyncio.timeout(_RENEWAL_S):
                    self._token = await in_daemon_thread(self._read, name="kubeconfig")
                self._asked_at = self._clock()
        return (self._token or "").removeprefix("Bearer ")
