"""Kubeconfigs from Secrets: what is accepted, what is refused and why, and that refusals quote nothing."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from tests.support.remote.kubeconfigs import (
    SERVER,
    TOKEN,
    authority_data,
    client_pair,
    encoded,
    kubeconfig,
    written,
)
from trimtab.operator.remote.kubeconfig import BAD, INSECURE, KubeConfigRefused, read_kubeconfig, read_kubeconfig_beside


def _certificates() -> dict[str, str]:
    pair = client_pair()
    return {"client-certificate-data": encoded(pair.certificate), "client-key-data": encoded(pair.key)}


async def test_a_token_over_tls_is_accepted() -> None:
    access = read_kubeconfig(written(kubeconfig()))
    assert access.server == SERVER
    assert access.token is not None
    assert await access.token() == TOKEN
    assert [entry["subject"] for entry in access.tls.context().get_ca_certs()]


@pytest.mark.parametrize(
    "config",
    [
        {"user": {"token": None} | _certificates()},
        {"user": _certificates()},
        {"cluster": {"insecure-skip-tls-verify": False}},
        {"cluster": {"disable-compression": True, "extensions": []}},
        {"users": [{"name": "other", "user": {"exec": {"command": "sh"}}}, {"name": "me", "user": {"token": TOKEN}}]},
    ],
    ids=["certificates", "both", "explicit false", "harmless fields", "another user that nobody names"],
)
def test_other_good_ones_are_accepted(config: dict[str, Any]) -> None:
    assert read_kubeconfig(written(kubeconfig(**config))).server == SERVER


def _protected_key() -> str:
    key = serialization.load_pem_private_key(client_pair().key, password=None)
    return encoded(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hush"),
        )
    )


_OTHER_KEY = base64.b64encode(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").decode()

_REFUSED: dict[str, tuple[Any, str, str]] = {
    "insecure TLS": (kubeconfig(cluster={"insecure-skip-tls-verify": True}), INSECURE, "insecure-skip-tls-verify"),
    "insecure TLS as text": (
        kubeconfig(cluster={"insecure-skip-tls-verify": "false"}),
        INSECURE,
        "insecure-skip-tls-verify",
    ),
    "plain http": (kubeconfig(cluster={"server": "http://hidden.example.org"}), INSECURE, "cluster.server"),
    "another scheme": (kubeconfig(cluster={"server": "file:///etc/passwd"}), INSECURE, "cluster.server"),
    "credentials in the address": (
        kubeconfig(cluster={"server": "https://me:hidden@example.org"}),
        INSECURE,
        "cluster.server",
    ),
    "no server": (kubeconfig(cluster={"server": None}), BAD, "cluster.server"),
    "no host": (kubeconfig(cluster={"server": "https://"}), BAD, "cluster.server"),
    "a port that is none": (kubeconfig(cluster={"server": "https://hidden:port"}), BAD, "cluster.server"),
    "a query": (kubeconfig(cluster={"server": "https://hidden/?a=b"}), BAD, "cluster.server"),
    "no authority": (
        kubeconfig(cluster={"certificate-authority-data": None}),
        INSECURE,
        "certificate-authority-data",
    ),
    "an empty authority": (
        kubeconfig(cluster={"certificate-authority-data": " "}),
        INSECURE,
        "certificate-authority-data",
    ),
    "an authority of blanks": (
        kubeconfig(cluster={"certificate-authority-data": encoded(b"\n\n")}),
        BAD,
        "certificate-authority-data",
    ),
    "an authority that is no PEM": (
        kubeconfig(cluster={"certificate-authority-data": encoded(b"hidden")}),
        BAD,
        "certificate-authority-data",
    ),
    "an authority in a file": (
        kubeconfig(cluster={"certificate-authority": "/etc/hidden.crt"}),
        INSECURE,
        "cluster.certificate-authority",
    ),
    "a proxy": (kubeconfig(cluster={"proxy-url": "http://hidden:3128"}), INSECURE, "cluster.proxy-url"),
    "a field of the cluster we do not know": (
        kubeconfig(cluster={"tls-server-name": "hidden"}),
        BAD,
        "cluster: has a field",
    ),
    "a program": (kubeconfig(user={"exec": {"command": "hidden"}}), INSECURE, "user.exec"),
    "an auth provider": (kubeconfig(user={"auth-provider": {"name": "hidden"}}), INSECURE, "user.auth-provider"),
    "a token in a file": (kubeconfig(user={"tokenFile": "/var/hidden"}), INSECURE, "user.tokenFile"),
    "a certificate in a file": (
        kubeconfig(user={"client-certificate": "/hidden.crt"}),
        INSECURE,
        "user.client-certificate",
    ),
    "a key in a file": (kubeconfig(user={"client-key": "/hidden.key"}), INSECURE, "user.client-key"),
    "impersonation": (kubeconfig(user={"as": "system:admin"}), INSECURE, "user.as"),
    "impersonation of groups": (kubeconfig(user={"as-groups": ["system:masters"]}), INSECURE, "user.as-groups"),
    "a password": (kubeconfig(user={"username": "hidden", "password": "hidden"}), INSECURE, "user.username"),
    "a secret as a field's name": (kubeconfig(user={"hidden-secret": 1}), BAD, "user: has a field"),
    "no credentials": (kubeconfig(user={"token": None}), BAD, "user: has no credentials"),
    "a token with a line break": (kubeconfig(user={"token": "hidden\r\nX-Evil: 1"}), BAD, "user.token"),
    "a token that is a number": (kubeconfig(user={"token": 17}), BAD, "user.token"),
    "a certificate without its key": (
        kubeconfig(user={"client-certificate-data": _certificates()["client-certificate-data"]}),
        BAD,
        "client-key-data",
    ),
    "a key that is not the certificate's": (
        kubeconfig(user=_certificates() | {"client-key-data": _OTHER_KEY}),
        BAD,
        "client-key-data",
    ),
    "a key with a password": (
        kubeconfig(user=_certificates() | {"client-key-data": _protected_key()}),
        BAD,
        "has a password",
    ),
    "a key that is no base64": (kubeconfig(user=_certificates() | {"client-key-data": "%"}), BAD, "client-key-data"),
    "no current context": (kubeconfig() | {"current-context": ""}, BAD, "current-context"),
    "a context that is not there": (kubeconfig() | {"current-context": "hidden"}, BAD, "contexts"),
    "two users of one name": (
        kubeconfig(users=[{"name": "me", "user": {"token": "hidden"}}, {"name": "me", "user": {"token": "hidden"}}]),
        BAD,
        "users",
    ),
    "a context without a user": (
        kubeconfig(contexts=[{"name": "there", "context": {"cluster": "far"}}]),
        BAD,
        "context.user",
    ),
    "sections that are no lists": (kubeconfig(clusters={"far": {}}), BAD, "clusters"),
    "a cluster that is no mapping": (kubeconfig(clusters=[{"name": "far", "cluster": "hidden"}]), BAD, "clusters"),
    "a list": (["hidden"], BAD, "mapping"),
}


@pytest.mark.parametrize(("config", "reason", "field"), _REFUSED.values(), ids=_REFUSED.keys())
def test_what_is_refused_is_named_and_not_quoted(config: Any, reason: str, field: str) -> None:
    with pytest.raises(KubeConfigRefused) as refused:
        read_kubeconfig(written(config))
    assert refused.value.reason == reason
    assert field in str(refused.value)
    for secret in ("hidden", TOKEN, authority_data(), "example.org", "system:"):
        assert secret not in str(refused.value)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe hidden", b"{hidden: [", b"[" * 100_000, b"a: &a [*a, hidden]\n" * 20_000]
)
def test_what_is_no_yaml_is_refused(content: bytes) -> None:
    with pytest.raises(KubeConfigRefused) as refused:
        read_kubeconfig(content)
    assert refused.value.reason == BAD
    assert "hidden" not in str(refused.value)


def _merges(levels: int) -> bytes:
    """Each level merges the one before nine times."""
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, levels)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (_merges(9), "line 1: an anchor or alias"),
        (b"a: &x 1\nb: *x", "line 1: an anchor or alias"),
        (b"clusters: []\n? *x\n: 1", "line 2: an anchor or alias"),
        (b"users:\n- <<: {a: b}", "line 2: a merge"),
        (b"users:\n- !!merge a: {a: b}", "line 2: a merge"),
        (b"[" * 100_000, "nested deeper than 20 levels"),
        (b"a: " + b"[" * 30 + b"]" * 30, "nested deeper than 20 levels"),
        (b"- x\n" * 30_000, "more than 10000 values"),
        (b"a: '" + b"x" * 200_000 + b"'", "more than 131072 bytes"),
        (b"a: " + b"9" * 100_000, "no YAML"),
        (b"a: !!python/object/apply:os.system [id]", "no YAML"),
        (b"\xff\xfe\x00", "no YAML"),
    ],
    ids=lambda given: str(given)[:30],
)
def test_what_makes_much_of_little_is_refused_at_once(content: bytes, told: str) -> None:
    began = time.process_time()
    with pytest.raises(KubeConfigRefused) as refused:
        read_kubeconfig(content)
    assert told in str(refused.value)
    assert refused.value.reason == BAD
    assert time.process_time() - began < 1.0


async def test_reading_beside_the_event_loop_says_the_same() -> None:
    access = await read_kubeconfig_beside(written(kubeconfig()))
    assert access.server == SERVER
    with pytest.raises(KubeConfigRefused):
        await read_kubeconfig_beside(b"a: &x 1")
