"""Contexts are made of what the files say now, and nobody but trimtab.fabric.tls makes any."""

from __future__ import annotations

import ast
import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.fabric.tls import ClientTls, TlsUnusable
from trimtab.kube.certificates import CertificateAuthority

ROOT = Path(__file__).parents[3]
AUTHORITY = CertificateAuthority.create(now=datetime.datetime.now(datetime.UTC))
OTHER = CertificateAuthority.create(now=datetime.datetime.now(datetime.UTC))


def test_the_same_context_as_long_as_the_file_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_bytes(AUTHORITY.pair.certificate)
    tls = ClientTls(authority=file)
    before = tls.context()
    assert tls.context() is before
    file.write_bytes(OTHER.pair.certificate)
    after = tls.context()
    assert after is not before
    assert len(after.get_ca_certs()) == 1
    file.write_bytes("# Büro\n".encode() + AUTHORITY.pair.certificate + OTHER.pair.certificate)
    assert len(tls.context().get_ca_certs()) == 2


@pytest.mark.parametrize("content", [b"", b"\n", b"text", b"\xff"])
def test_a_file_without_an_authority_is_not_everybodys_trust(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "ca.crt"
    file.write_bytes(content)
    with pytest.raises(TlsUnusable, match=r"ca\.crt"):
        ClientTls(authority=file).context()


def test_our_own_certificate_is_renewed_too(tmp_path: Path) -> None:
    pair = AUTHORITY.client(user="u", groups=())
    certificate, key = pair.write(tmp_path, "own")
    tls = ClientTls(authority=AUTHORITY.pair.certificate, certificate=certificate, key=key)
    before = tls.context()
    AUTHORITY.client(user="u", groups=()).write(tmp_path, "own")
    assert tls.context() is not before
    key.write_bytes(pair.key)
    with pytest.raises(TlsUnusable, match="do not belong together"):
        tls.context()


_MAKES_CONTEXTS = {"create_default_context", "SSLContext", "load_verify_locations", "load_cert_chain"}
_MAKERS = {
    "trimtab/fabric/tls.py": "the place",
    "trimtab/devcluster/node/kubelet_api.py": "a server's context, whose clients are the API server",
}
_CLIENTS = {"nats", "boto3", "botocore"}
_FABRIC = ("trimtab/fabric/bus/", "trimtab/fabric/objects/")
_DIALS_ITSELF = {
    "trimtab/embedded/seaweedfs.py": "asks a server of its own on loopback whether it is ready, without TLS",
}


def _sources() -> Iterator[tuple[str, list[ast.AST]]]:
    for part in ("runtime", "operator"):
        for path in sorted((ROOT / part).rglob("*.py")):
            name = path.as_posix().rpartition("/trimtab/")[2]
            yield f"trimtab/{name}", list(ast.walk(ast.parse(path.read_text())))


def _called(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def _imported(node: ast.AST) -> set[str]:
    match node:
        case ast.Import(names=names):
            return {alias.name.partition(".")[0] for alias in names}
        case ast.ImportFrom(module=str(module), level=0):
            return {module.partition(".")[0]}
    return set()


def test_every_role_dials_through_the_fabric() -> None:
    """dataflow, rollout, trainer and operator: a context or a client of their own would keep whom it trusted first."""
    makers, dialling = set(), set()
    for name, nodes in _sources():
        if any(_called(node) in _MAKES_CONTEXTS for node in nodes):
            makers.add(name)
        if any(_imported(node) & _CLIENTS for node in nodes) and not name.startswith(_FABRIC):
            dialling.add(name)
    assert makers == set(_MAKERS)
    assert dialling == set(_DIALS_ITSELF)
