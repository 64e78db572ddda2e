"""What a NATS server of one's own is told, so that it lets in the users of one account: an operator, that account, and
a system account. The server needs the public part only; the seed of the account is for the process that mints users.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.fabric.bus.users.keys import KeyKind, KeyPair
from trimtab.fabric.bus.users.tokens import account_token, operator_token

MAX_CONTROL_LINE = 64 * 1024
"""Of a server whose users have long lists of rights: the token is part of the first line that a client sends."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    account_seed: str
    """A secret."""
    server: str
    """For the server's configuration, where it is included; nothing in it is secret."""

    def __repr__(self) -> str:
        return "Trust(…)"


def new_trust(*, issued_at: int, entropy: Callable[[int], bytes] = os.urandom) -> Trust:
    """The keys of the operator and of the system account are thrown away: no other account is needed, and what the
    server says of itself is read over HTTP."""
    operator = KeyPair.generate(KeyKind.OPERATOR, entropy=entropy)
    account = KeyPair.generate(KeyKind.ACCOUNT, entropy=entropy)
    system = KeyPair.generate(KeyKind.ACCOUNT, entropy=entropy).public

    def vouched(public: str, *, name: str, streams: bool) -> str:
        return account_token(public, signed_by=operator, name=name, streams=streams, issued_at=issued_at)

    accounts = {
        account.public: vouched(account.public, name="trimtab", streams=True),
        system: vouched(system, name="system", streams=False),
    }
    statements = {
        "operator": operator_token(operator, name="trimtab", system_account=system, issued_at=issued_at),
        "system_account": system,
        "resolver": "MEMORY",
        "resolver_preload": accounts,
    }
    # JSON is a subset of the server's configuration language, but for the braces around a whole file.
    lines = [f"{name}: {json.dumps(value)}" for name, value in statements.items()]
    return Trust(account_seed=account.reveal_seed(), server="\n".join(lines) + "\n")
