"""The signed statements by which a NATS server knows whom to trust: an operator vouches for accounts, an account for
users. Version 2 of the format, as the server reads it. Ed25519 is deterministic: equal content gives equal text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.fabric.bus.rights import Rights
from trimtab.fabric.bus.users.accounts import AccountPlan, Kind
from trimtab.fabric.bus.users.keys import KeyPair
from trimtab.fabric.bus.users.limits import AccountLimits

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_UNLIMITED_CONNECTION = {"subs": -1, "data": -1, "payload": -1}
_UNLIMITED_ACCOUNT = {**_UNLIMITED_CONNECTION, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": 0}
# Of the connections to an account with streams: operators, old and new, and people who look.
_KEEPER_CONNECTIONS = 64


def operator_token(operator: KeyPair, *, name: str, system_account: str, issued_at: int) -> str:
    body = {"type": "operator", "version": 2, "system_account": system_account}
    return signed(operator, subject=operator.public, name=name, body=body, issued_at=issued_at)


def system_account_token(account: str, *, signed_by: KeyPair, issued_at: int) -> str:
    """Of the account in which a server is told of other accounts. It must not have streams."""
    body = _account_body(_UNLIMITED_ACCOUNT)
    return signed(signed_by, subject=account, name="system", body=body, issued_at=issued_at)


def job_account_token(
    plan: AccountPlan,
    *,
    keys: Mapping[str, KeyPair],
    signed_by: KeyPair,
    name: str,
    limits: AccountLimits,
    issued_at: int,
) -> str:
    """One of a job's accounts. `keys` are those of all of them, by name: each lets in those that import of it."""
    account = keys[plan.name].public
    claims = _account_body(_account_limits(plan, limits))
    claims["exports"] = [export.claim() for export in plan.exports]
    claims["imports"] = [
        {
            "name": one.subject,
            "subject": one.subject,
            "type": one.kind.value,
            "account": keys[one.account].public,
            "token": _activation(keys[one.account], account=account, kind=one.kind, issued_at=issued_at),
            **({} if one.here is None else {"local_subject": one.here}),
        }
        for one in plan.imports
    ]
    return signed(signed_by, subject=account, name=name, body=claims, issued_at=issued_at)


def deletion_token(accounts: Sequence[str], *, signed_by: KeyPair, issued_at: int) -> str:
    """By which a server forgets accounts, given by their public keys, and cuts their connections."""
    body = {"type": "generic", "version": 2, "accounts": list(accounts)}
    return signed(signed_by, subject=signed_by.public, name="deletion", body=body, issued_at=issued_at)


def _account_body(limits: dict[str, Any]) -> dict[str, Any]:
    return {"type": "account", "version": 2, "limits": limits, "default_permissions": {"pub": {}, "sub": {}}}


def _account_limits(plan: AccountPlan, limits: AccountLimits) -> dict[str, Any]:
    held = _UNLIMITED_ACCOUNT | {
        "payload": -1 if limits.payload_bytes is None else limits.payload_bytes,
        "subs": limits.subscriptions,
        "conn": _KEEPER_CONNECTIONS if plan.holds_streams else limits.connections,
        "imports": len(plan.imports),
        "exports": len(plan.exports),
    }
    if plan.holds_streams:
        held |= {
            "mem_storage": limits.memory_bytes,
            "disk_storage": limits.storage_bytes,
            "streams": limits.streams,
            "consumer": limits.consumers,
        }
    return held


def _activation(exporter: KeyPair, *, account: str, kind: Kind, issued_at: int) -> str:
    """By which one account lets another one in. What that one imports is in its own token, which it cannot sign."""
    body = {"type": "activation", "version": 2, "subject": ">", "kind": kind.value}
    return signed(exporter, subject=account, name=kind.value, body=body, issued_at=issued_at)


def user_token(
    user: str, *, signed_by: KeyPair, name: str, rights: Rights | None, issued_at: int, expires_at: int
) -> str:
    """`user` is a public key; `signed_by` is its account's. Without rights it may do everything in its account."""
    body: dict[str, Any] = {"type": "user", "version": 2, **_UNLIMITED_CONNECTION}
    body |= {"pub": {}, "sub": {}} if rights is None else rights.claims()
    return signed(signed_by, subject=user, name=name, body=body, issued_at=issued_at, expires_at=expires_at)


def credentials_text(token: str, user: KeyPair) -> str:
    """The file that a client dials with."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.reveal_seed()}\n------END USER NKEY SEED------\n"
    )


def signed(
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
