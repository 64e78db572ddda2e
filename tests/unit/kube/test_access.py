"""A kubeconfig from a Secret is read strictly: it reads no file and runs no program of ours."""

from __future__ import annotations

import base64
import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.api.manifests import changed
from trimtab.kube.access import AccessError, TokenFile, carried_access, in_cluster_access
from trimtab.kube.certificates import CertificateAuthority

AUTHORITY = CertificateAuthority.create(now=datetime.datetime.now(datetime.UTC))
ENCODED = base64.b64encode(AUTHORITY.pair.certificate).decode()


def config() -> dict[str, Any]:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://k:6443/", "certificate-authority-data": ENCODED}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }


async def test_the_current_context_is_taken() -> None:
    access = carried_access(config())
    assert access.token is not None
    assert (access.server, access.namespace, await access.token()) == ("https://k:6443", "team", "t")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("current-context", "", "current-context"),
        ("current-context", "other", "contexts: the kubeconfig has none called 'other'"),
        ("clusters", [], "clusters: the kubeconfig has none called 'k'"),
        ("clusters.0.cluster.server", "http://k", "cluster.server"),
        ("clusters.0.cluster.insecure-skip-tls-verify", True, "insecure-skip-tls-verify"),
        ("clusters.0.cluster.certificate-authority-data", "?", "certificate-authority-data"),
        ("clusters.0.cluster.certificate-authority-data", "AAAA", "valid PEM"),
        ("users.0.user", {"exec": {"command": "aws"}}, "user.exec"),
        ("users.0.user", {"client-certificate-data": ENCODED}, "client-key"),
        ("users.0.user", {"tokenFile": "/etc/shadow"}, "user.tokenFile: not allowed"),
        ("users.0.user", {"client-certificate": "/etc/shadow", "client-key": "/etc/shadow"}, "client-certificate"),
        ("clusters.0.cluster", {"server": "https://k", "certificate-authority": "/etc/shadow"}, "not allowed"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(path: str, value: Any, message: str) -> None:
    with pytest.raises(AccessError, match=message):
        carried_access(changed(config(), {path: value}))


async def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "token"
    path.write_text("first\n")
    token = TokenFile(path, clock=lambda: now[0])
    assert await token() == "first"
    path.write_text("second\n")
    assert await token() == "first"
    now[0] = 61.0
    assert await token() == "second"


def test_the_pod_s_service_account(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.pair.certificate)
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("team")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = in_cluster_access(environment, folder=tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "team")
    with pytest.raises(AccessError, match="this is no pod"):
        in_cluster_access({}, folder=tmp_path)
