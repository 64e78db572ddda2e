"""A person's own kubeconfigs work as they do with kubectl: several files, programs, OIDC, files that are renewed."""

from __future__ import annotations

import base64
import datetime
import json
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.api.manifests import changed
from trimtab.kube import own_kubeconfig
from trimtab.kube.access import AccessError, ClusterAccess, load_access
from trimtab.kube.certificates import CertificateAuthority

SECRET = "do-not-print-me"
AUTHORITY = CertificateAuthority.create(now=datetime.datetime.now(datetime.UTC))
ENCODED = base64.b64encode(AUTHORITY.pair.certificate).decode()


def config() -> dict[str, Any]:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://k:6443/", "certificate-authority-data": ENCODED}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }


def written(folder: Path, content: dict[str, Any], name: str = "config") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(yaml.safe_dump(content))
    return file


async def token_of(access: ClusterAccess) -> str:
    assert access.token is not None
    return await access.token()


def plugin(folder: Path, *, lifetime_s: float) -> dict[str, Any]:
    """A program as cloud providers have it: prints another token each time."""
    count, script = folder / "runs", folder / "login.sh"
    expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=lifetime_s)
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "TOKEN", "expirationTimestamp": expires.strftime("%Y-%m-%dT%H:%M:%SZ")},
    }
    script.write_text(
        f"#!/bin/sh\necho x >> {count}\nprintf '%s' '{json.dumps(credential)}' "
        f'| sed "s/TOKEN/$PREFIX-$(wc -l < {count})/"\n'
    )
    script.chmod(0o755)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./login.sh",
            "env": [{"name": "PREFIX", "value": "t"}],
            "interactiveMode": "Never",
        }
    }


async def test_a_program_prints_the_token_and_is_run_again_before_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_kubeconfig, "_ASKED_AGAIN_S", -1.0)
    lasting = changed(config(), {"users.0.user": plugin(tmp_path, lifetime_s=3600)})
    access = load_access(written(tmp_path, lasting))
    assert [await token_of(access) for _ in range(3)] == ["t-1"] * 3
    (tmp_path / "runs").unlink()
    brief = changed(config(), {"users.0.user": plugin(tmp_path, lifetime_s=60)})
    access = load_access(written(tmp_path, brief))
    first, second = await token_of(access), await token_of(access)
    assert first != second


def test_a_program_that_fails_is_named(tmp_path: Path) -> None:
    user = plugin(tmp_path, lifetime_s=1)
    (tmp_path / "login.sh").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(AccessError, match=r"user.exec: ./login.sh printed no credentials"):
        load_access(written(tmp_path, changed(config(), {"users.0.user": user})))


def test_a_program_that_hangs_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    user = plugin(tmp_path, lifetime_s=1)
    (tmp_path / "login.sh").write_text("#!/bin/sh\nexec sleep 5\n")
    with pytest.raises(AccessError, match="user.exec: no credentials within"):
        own_kubeconfig.own_access(
            str(written(tmp_path, changed(config(), {"users.0.user": user}))), context=None, login_s=0.1
        )


async def test_several_files_are_one_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that names a context decides, and paths are relative to the file they are in."""
    whole = config()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "token").write_text("from-a-file\n")
    first = written(tmp_path / "a", {"current-context": "c", "contexts": whole["contexts"]})
    second = written(
        tmp_path / "b",
        {
            "current-context": "other",
            "clusters": whole["clusters"],
            "users": [{"name": "u", "user": {"tokenFile": "token"}}],
        },
    )
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(first), str(tmp_path / "absent"), str(second)]))
    access = load_access()
    assert (access.server, access.namespace, await token_of(access)) == ("https://k:6443", "team", "from-a-file")


def jwt(*, expires: float, name: str) -> str:
    parts: tuple[dict[str, object], ...] = ({"alg": "none"}, {"exp": expires, "name": name}, {})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


@contextmanager
def identity_provider(folder: Path, fresh: str) -> Iterator[str]:
    """Exchanges the refresh token for `fresh`, over TLS."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"token_endpoint": f"{issuer}/token"})

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
            known = "refresh_token=old" in asked
            self._answer({"id_token": fresh, "refresh_token": "next", "access_token": "a"} if known else {})

        def _answer(self, content: dict[str, str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: Any) -> None:
            pass

    AUTHORITY.server("127.0.0.1").write(folder, "provider")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "provider.crt", folder / "provider.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        issuer = f"https://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield issuer
        server.shutdown()


async def test_an_oidc_token_is_renewed_with_its_refresh_token_and_kept(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC).timestamp()
    fresh = jwt(expires=now + 3600, name="fresh")
    with identity_provider(tmp_path, fresh) as issuer:
        provider = {
            "idp-issuer-url": issuer,
            "idp-certificate-authority-data": base64.b64encode(AUTHORITY.pair.certificate).decode(),
            "client-id": "kubectl",
            "client-secret": "s",
            "id-token": jwt(expires=now - 10, name="stale"),
            "refresh-token": "old",
        }
        file = written(
            tmp_path,
            changed(config(), {"users.0.user": {"auth-provider": {"name": "oidc", "config": provider}}}),
        )
        assert await token_of(load_access(file)) == fresh
    assert yaml.safe_load(file.read_text())["users"][0]["user"]["auth-provider"]["config"]["id-token"] == fresh
    assert await token_of(load_access(file)) == fresh


def test_certificates_as_data_leave_no_key_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    client = AUTHORITY.client(user="me", groups=())
    user = {
        "client-certificate-data": base64.b64encode(client.certificate).decode(),
        "client-key-data": base64.b64encode(client.key).decode(),
    }
    access = load_access(written(tmp_path, changed(config(), {"users.0.user": user})))
    access.tls.context()
    assert not list(scratch.iterdir())


def test_a_certificate_in_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.pair.certificate)
    cluster = {
        "server": "https://k",
        "certificate-authority": "ca.crt",
        "tls-server-name": "n",
        "proxy-url": "http://p",
    }
    access = load_access(written(tmp_path, changed(config(), {"clusters.0.cluster": cluster})))
    assert (access.server_name, access.proxy) == ("n", "http://p")
    before = access.tls.context()
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.pair.certificate * 2)
    assert access.tls.context() is not before


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("current-context", "", "current-context"),
        ("current-context", "other", "contexts: the kubeconfig has none called 'other'"),
        ("clusters", [], "clusters: the kubeconfig has none called 'k'"),
        ("users", [{"name": "u", "token": SECRET}], "users: the kubeconfig has none called 'u'"),
        ("users", SECRET, "is no kubeconfig"),
        ("clusters.0.cluster.server", "http://k", "cluster.server"),
        ("clusters.0.cluster.insecure-skip-tls-verify", True, "insecure-skip-tls-verify"),
        ("clusters.0.cluster.certificate-authority-data", "AAAA", "valid PEM"),
        ("users.0.user", {"as": "root", "token": SECRET}, "user.as: impersonation is not supported"),
        ("users.0.user", {"username": "me", "password": SECRET}, "user.username"),
        ("users.0.user", {"client-certificate-data": SECRET}, "client-key"),
        ("users.0.user", {"client-certificate-data": SECRET, "client-key-data": SECRET}, "no valid PEM"),
        ("users.0.user", {"client-certificate": "/absent", "client-key": "/absent"}, "File does not exist: /absent"),
        ("users.0.user", {"exec": SECRET}, "user.exec: give command"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name_and_quotes_no_secret(
    tmp_path: Path, path: str, value: Any, message: str
) -> None:
    with pytest.raises(AccessError, match=message) as refusal:
        load_access(written(tmp_path, changed(config(), {path: value})))
    assert SECRET not in str(refusal.value)


def test_a_kubeconfig_that_is_missing_or_no_yaml(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="absent cannot be read"):
        load_access(tmp_path / "absent")
    (tmp_path / "config").write_text(f"token: {SECRET}\n  x: [")
    with pytest.raises(AccessError, match="line 2: is no YAML") as refusal:
        load_access(tmp_path / "config")
    assert SECRET not in str(refusal.value)
