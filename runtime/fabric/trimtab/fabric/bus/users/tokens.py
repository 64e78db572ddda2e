"""The signed statements by which a NATS server knows whom to trust: an operator vouches for accounts, an account for
users. Version 2 of the format, as the server reads it. Ed25519 is deterministic: equal content gives equal text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from trimtab.fabric.bus.rights import Rights
from trimtab.fabric.bus.users.keys import KeyPair

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_UNLIMITED_CONNECTION = {"subs": -1, "data": -1, "payload": -1}
_UNLIMITED_ACCOUNT = {
    **_UNLIMITED_CONNECTION,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}
_UNLIMITED_STORAGE = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


def operator_token(operator: KeyPair, *, name: str, system_account: str, issued_at: int) -> str:
    body = {"type": "operator", "version": 2, "system_account": system_account}
    return _signed(operator, subject=operator.public, name=name, body=body, issued_at=issued_at)


def account_token(account: str, *, signed_by: KeyPair, name: str, streams: bool, issued_at: int) -> str:
    """`account` is its public key. `streams`: whether it has JetStream, without limits; a system account must not."""
    limits = _UNLIMITED_ACCOUNT | (_UNLIMITED_STORAGE if streams else {})
    body = {"type": "account", "version": 2, "limits": limits, "default_permissions": {"pub": {}, "sub": {}}}
    return _signed(signed_by, subject=account, name=name, body=body, issued_at=issued_at)


def user_token(
    user: str, *, account: str, signed_by: KeyPair, name: str, rights: Rights | None, issued_at: int, expires_at: int
) -> str:
    """`user` and `account` are public keys; `signed_by` is the account's own key or one of its signing keys. Without
    rights the user may do everything in its account."""
    body: dict[str, Any] = {"type": "user", "version": 2, **_UNLIMITED_CONNECTION}
    body |= {"pub": {}, "sub": {}} if rights is None else rights.claims()
    if account != signed_by.public:
        body["issuer_account"] = account
    return _signed(signed_by, subject=user, name=name, body=body, issued_at=issued_at, expires_at=expires_at)


def credentials_text(token: str, user: KeyPair) -> str:
    """The file that a client dials with."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.reveal_seed()}\n------END USER NKEY SEED------\n"
    )


def _signed(
    issuer: KeyPair, *, subject: str, name: str, body: dict[str, Any], issued_at: int, expires_at: int | None = None
) -> str:
    claims: dict[str, Any] = {"iat": issued_at, "iss": issuer.public, "name": name, "sub": subject, "nats": body}
    if expires_at is not None:
        claims["exp"] = expires_at
    digest = hashlib.sha256(_json(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_base64url(_json(_HEADER))}.{_base64url(_json(claims))}"
    return f"{text}.{_base64url(issuer.sign(text.encode()))}"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
