"""Telling NATS servers of accounts, and having them forgotten, as a user of the system account."""

from __future__ import annotations

import json
from typing import Any

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusUnavailable, NoResponders
from trimtab.fabric.bus.retry import until_deadline

_UPDATE = "$SYS.REQ.CLAIMS.UPDATE"
_DELETE = "$SYS.REQ.CLAIMS.DELETE"
_OK = 200


class ClaimsRefused(BusError):
    """The server does not take what was signed; the message says why."""


async def register(bus: Bus, token: str, *, deadline_s: float) -> None:
    """The account is there when this returns. Registering the same one again changes nothing."""
    await _told(bus, _UPDATE, token, deadline_s=deadline_s)


async def forget(bus: Bus, deletion: str, *, deadline_s: float) -> None:
    """The accounts are gone, and their connections cut, when this returns. Those that were not there are no error."""
    await _told(bus, _DELETE, deletion, deadline_s=deadline_s)


async def _told(bus: Bus, subject: str, token: str, *, deadline_s: float) -> None:
    async def attempt(timeout_s: float) -> bytes:
        try:
            return (await bus.ask(subject, token.encode(), deadline_s=timeout_s)).data
        except NoResponders:
            raise ClaimsRefused(
                "the NATS server keeps no accounts: it needs a resolver of type full, with allow_delete, and this user"
                " has to be one of its system account"
            ) from None

    answer = await until_deadline(attempt, deadline_s=deadline_s, attempt_timeout_s=bus.attempt_timeout_s)
    try:
        content: dict[str, Any] = json.loads(answer)
        code, said = _outcome(content)
    except (ValueError, AttributeError, TypeError):
        raise BusUnavailable(f"what answered on {subject} is no NATS server") from None
    if code != _OK:
        raise ClaimsRefused(f"{subject}: {said} (code {code})")


def _outcome(content: dict[str, Any]) -> tuple[int, str]:
    body = content.get("data") or content.get("error") or {}
    return int(body.get("code", 0)), str(body.get("message") or body.get("description") or "no reason given")
