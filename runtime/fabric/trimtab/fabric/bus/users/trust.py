"""What a NATS server is told, so that it takes the accounts that one key signs: an operator, and a system account in
which it is told of the others. The server needs the public part only; the seed is for the process that makes accounts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.fabric.bus.users.keys import KeyKind, KeyPair
from trimtab.fabric.bus.users.mint import system_account
from trimtab.fabric.bus.users.tokens import operator_token, system_account_token

MAX_CONTROL_LINE = 64 * 1024
"""Of a server whose users have long lists of rights: the token is part of the first line that a client sends."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    operator_seed: str
    """A secret."""
    server: str
    """For the server's configuration, where it is included; nothing in it is secret. The server also needs a
    `resolver`, which keeps the accounts that it is told of."""

    def __repr__(self) -> str:
        return "Trust(…)"


def new_trust(*, issued_at: int, entropy: Callable[[int], bytes] = os.urandom) -> Trust:
    operator = KeyPair.generate(KeyKind.OPERATOR, entropy=entropy)
    system = system_account(operator).public
    statements = {
        "operator": operator_token(operator, name="trimtab", system_account=system, issued_at=issued_at),
        "system_account": system,
        "resolver_preload": {system: system_account_token(system, signed_by=operator, issued_at=issued_at)},
    }
    # JSON is a subset of the server's configuration language, but for the braces around a whole file.
    lines = [f"{name}: {json.dumps(value)}" for name, value in statements.items()]
    return Trust(operator_seed=operator.reveal_seed(), server="\n".join(lines) + "\n")


def resolver(folder: str) -> dict[str, object]:
    """The server's setting: accounts are kept in the folder, and may be deleted by a signed request."""
    return {"type": "full", "dir": folder, "allow_delete": True, "interval": "2m"}
