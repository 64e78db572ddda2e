"""Kubeconfigs to accept and to refuse, with certificates made for the purpose."""

from __future__ import annotations

import base64
import datetime
from functools import cache
from typing import Any

import yaml

from trimtab.kube.certificates import CertificateAuthority, KeyPair

TOKEN = "token-of-the-remote-account"
SERVER = "https://cluster.example.org:6443"


@cache
def _authority() -> CertificateAuthority:
    return CertificateAuthority.create(now=datetime.datetime.now(datetime.UTC))


@cache
def client_pair() -> KeyPair:
    return _authority().client(user="remote", groups=())


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def authority_data() -> str:
    return encoded(_authority().pair.certificate)


def kubeconfig(
    *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **top: Any
) -> dict[str, Any]:
    """A good one with a token; fields that are None are left out."""
    merged_cluster = {"server": SERVER, "certificate-authority-data": authority_data()} | (cluster or {})
    merged_user = {"token": TOKEN} | (user or {})
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "far", "cluster": _given(merged_cluster)}],
        "users": [{"name": "me", "user": _given(merged_user)}],
        "contexts": [{"name": "there", "context": {"cluster": "far", "user": "me"}}],
        "current-context": "there",
    } | top


def _given(section: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if value is not None}


def written(config: Any) -> bytes:
    return yaml.safe_dump(config).encode()
