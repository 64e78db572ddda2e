"""Tokens in files are read again, and a pod's service account says how its cluster is reached."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from trimtab.kube.access import AccessError, TokenFile, in_cluster_access
from trimtab.kube.certificates import CertificateAuthority

AUTHORITY = CertificateAuthority.create(now=datetime.datetime.now(datetime.UTC))


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
