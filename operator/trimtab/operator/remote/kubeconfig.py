"""A kubeconfig from a Secret, read with suspicion: it may make us dial an address over TLS with what it carries, and
nothing else. It has no access to our own files, programs, proxies and identities.

Messages name fields and never what is in them: they go into statuses and events.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Any
from urllib.parse import urlsplit

import yaml

from trimtab.fabric.daemon_thread import in_daemon_thread
from trimtab.kube.access import AccessError, ClusterAccess, checked_tls, fixed_token

INSECURE = "InsecureKubeConfig"
BAD = "BadKubeConfig"
_MAX_BYTES = 128 * 1024
_MAX_DEPTH = 20
_MAX_ENTRIES = 10_000
_READING_S = 30.0
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REQUIRED_AUTHORITY = "give the cluster's certificate in certificate-authority-data"
_OWN_CREDENTIALS = "give token, or client-certificate-data and client-key-data"

# What kubectl knows and we refuse, each with the fix. What is not listed here or below is refused too.
_INSECURE_IN_CLUSTER = {
    "insecure-skip-tls-verify": _REQUIRED_AUTHORITY,
    "certificate-authority": f"it is a file of the operator's own; {_REQUIRED_AUTHORITY}",
    "proxy-url": "the operator dials the server itself; remove it",
}
_INSECURE_IN_USER = {
    "exec": f"the operator runs no programs of others; {_OWN_CREDENTIALS}",
    "auth-provider": f"the operator runs no programs of others; {_OWN_CREDENTIALS}",
    "tokenFile": f"it is a file of the operator's own; {_OWN_CREDENTIALS}",
    "client-certificate": "it is a file of the operator's own; give client-certificate-data",
    "client-key": "it is a file of the operator's own; give client-key-data",
    "as": "the operator acts as no one else; give the credentials of the account itself",
    "as-uid": "the operator acts as no one else; give the credentials of the account itself",
    "as-groups": "the operator acts as no one else; give the credentials of the account itself",
    "as-user-extra": "the operator acts as no one else; give the credentials of the account itself",
    "username": f"passwords are not supported; {_OWN_CREDENTIALS}",
    "password": f"passwords are not supported; {_OWN_CREDENTIALS}",
}
_MERGE = "tag:yaml.org,2002:merge"
_KNOWN_IN_CLUSTER = frozenset({"server", "certificate-authority-data", "disable-compression", "extensions"})
_KNOWN_IN_USER = frozenset({"token", "client-certificate-data", "client-key-data", "extensions"})


class KubeConfigRefused(Exception):
    """It is not used. `reason` is for programs, the message for people; neither quotes it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def read_kubeconfig(content: bytes) -> ClusterAccess:
    """How its current context reaches a cluster. Raises KubeConfigRefused."""
    config = _parsed(content)
    context = _named(config, "contexts", config.get("current-context"), below="context", asked_by="current-context")
    cluster = _named(config, "clusters", context.get("cluster"), below="cluster", asked_by="context.cluster")
    user = _named(config, "users", context.get("user"), below="user", asked_by="context.user")
    _check_cluster(cluster)
    _check_user(user)
    token = user.get("token")
    try:
        tls = checked_tls(
            authority=_data(cluster, "certificate-authority-data"),
            certificate=_data(user, "client-certificate-data"),
            key=_data(user, "client-key-data"),
        )
    except (AccessError, ValueError):
        # Its own text may quote the kubeconfig.
        raise KubeConfigRefused(
            BAD,
            "certificate-authority-data, client-certificate-data and client-key-data: one is no PEM in base64, or "
            "certificate and key do not belong together",
        ) from None
    return ClusterAccess(
        server=str(cluster["server"]).rstrip("/"),
        tls=tls,
        token=None if token is None else fixed_token(token),
        namespace=str(context.get("namespace") or "default"),
    )


async def read_kubeconfig_beside(content: bytes) -> ClusterAccess:
    """The same in a thread: YAML and certificates take their time, and the event loop has other clusters to serve."""
    try:
        async with asyncio.timeout(_READING_S):
            return await in_daemon_thread(lambda: read_kubeconfig(content), name="kubeconfig")
    except TimeoutError:
        raise KubeConfigRefused(BAD, f"the kubeconfig takes more than {_READING_S:.0f} s to read") from None


def _check_plain(content: bytes) -> None:
    """Before anything is built of it. Aliases and merges make much of little: a few hundred bytes take minutes. Depth
    would exhaust the stack, which the C reader does not notice."""
    depth = 0
    for entries, event in enumerate(yaml.parse(content, Loader=_LOADER)):
        assert event.start_mark is not None
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise KubeConfigRefused(BAD, f"line {line}: an anchor or alias (& or *) is refused; write the value itself")
        if isinstance(event, yaml.ScalarEvent) and (event.tag == _MERGE or (event.value == "<<" and event.implicit[0])):
            raise KubeConfigRefused(BAD, f"line {line}: a merge (<<) is refused; write the fields themselves")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH or entries > _MAX_ENTRIES:
            raise KubeConfigRefused(
                BAD, f"the kubeconfig is nested deeper than {_MAX_DEPTH} levels or has more than {_MAX_ENTRIES} values"
            )


def _parsed(content: bytes) -> dict[str, Any]:
    if len(content) > _MAX_BYTES:
        raise KubeConfigRefused(
            BAD, f"the kubeconfig has more than {_MAX_BYTES} bytes; give the one context, as kubectl's --minify does"
        )
    try:
        _check_plain(content)
        config = yaml.load(content, Loader=_LOADER)  # noqa: S506 - a safe loader, in C where there is one
    except (yaml.YAMLError, ValueError, RecursionError):
        raise KubeConfigRefused(BAD, "the kubeconfig is no YAML") from None
    if not isinstance(config, dict):
        raise KubeConfigRefused(BAD, "a kubeconfig is a mapping with clusters, users, contexts and current-context")
    return config


def _named(config: dict[str, Any], section: str, name: object, *, below: str, asked_by: str) -> dict[str, Any]:
    """The one entry of the name. Two of one name would be read differently by different programs."""
    if not isinstance(name, str) or not name:
        raise KubeConfigRefused(BAD, f"{asked_by}: missing; name one of {section}")
    entries = config.get(section)
    found = [
        entry
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and entry.get("name") == name
    ]
    if len(found) != 1:
        raise KubeConfigRefused(BAD, f"{section}: there must be one that {asked_by} names, not {len(found)}")
    content = found[0].get(below)
    if not isinstance(content, dict):
        raise KubeConfigRefused(BAD, f"{section}: the one that {asked_by} names has no mapping {below}")
    return content


def _check_cluster(cluster: dict[str, Any]) -> None:
    _check_fields("cluster", cluster, insecure=_INSECURE_IN_CLUSTER, known=_KNOWN_IN_CLUSTER)
    server = cluster.get("server")
    if not isinstance(server, str) or not server:
        raise KubeConfigRefused(BAD, "cluster.server: missing; give the https:// address of the API server")
    try:
        address = urlsplit(server)
        host, _ = address.hostname, address.port
    except ValueError:
        raise KubeConfigRefused(BAD, "cluster.server: is no address; give https://host:port") from None
    if address.scheme != "https":
        raise KubeConfigRefused(INSECURE, "cluster.server: must begin with https://")
    if address.username is not None or address.password is not None:
        raise KubeConfigRefused(INSECURE, f"cluster.server: must not carry credentials; {_OWN_CREDENTIALS}")
    if not host or address.query or address.fragment or not server.isprintable() or " " in server:
        raise KubeConfigRefused(BAD, "cluster.server: is no address; give https://host:port")
    if not _is_text(cluster.get("certificate-authority-data")):
        raise KubeConfigRefused(INSECURE, f"cluster.certificate-authority-data: missing; {_REQUIRED_AUTHORITY}")


def _check_user(user: dict[str, Any]) -> None:
    _check_fields("user", user, insecure=_INSECURE_IN_USER, known=_KNOWN_IN_USER)
    token, certificate, key = (user.get(field) for field in ("token", "client-certificate-data", "client-key-data"))
    if token is not None and not (_is_text(token) and token.isascii() and token.isprintable() and " " not in token):
        raise KubeConfigRefused(BAD, "user.token: is no token; give one line of text without spaces")
    if (certificate is None) != (key is None):
        raise KubeConfigRefused(
            BAD, "user.client-certificate-data and user.client-key-data: one is given without the other"
        )
    for field, value in (("client-certificate-data", certificate), ("client-key-data", key)):
        if value is not None and not _is_text(value):
            raise KubeConfigRefused(BAD, f"user.{field}: is no text; give PEM in base64")
    if key is not None and b"ENCRYPTED" in _decoded(key):
        # OpenSSL would ask for the password at our terminal, and wait.
        raise KubeConfigRefused(BAD, "user.client-key-data: has a password; give the key without one")
    if token is None and certificate is None:
        raise KubeConfigRefused(BAD, f"user: has no credentials; {_OWN_CREDENTIALS}")


def _check_fields(section: str, content: dict[str, Any], *, insecure: dict[str, str], known: frozenset[str]) -> None:
    for field, fix in insecure.items():
        # An explicit `false` or an empty value asks for nothing.
        if content.get(field):
            raise KubeConfigRefused(INSECURE, f"{section}.{field}: refused; {fix}")
    if set(content) - known - set(insecure):
        # Not by its name: that may be a secret in the wrong place.
        raise KubeConfigRefused(
            BAD, f"{section}: has a field that is not supported here; only {', '.join(sorted(known))} are"
        )


def _data(section: dict[str, Any], field: str) -> bytes | None:
    encoded = section.get(field)
    return None if encoded is None else base64.b64decode(encoded, validate=True)


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value)
    except binascii.Error:
        return b""  # refused with the other certificates


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
