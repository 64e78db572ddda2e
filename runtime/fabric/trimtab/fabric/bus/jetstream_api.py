"""JetStream's JSON API: one request, one answer, and its error codes as our types."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import msgspec

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import (
    BusConflict,
    BusError,
    BusNotFound,
    BusRefused,
    BusUnavailable,
    PayloadTooLarge,
    StreamFull,
)
from trimtab.fabric.bus.retry import until_deadline

Json = dict[str, Any]

_NOT_FOUND = frozenset({10059, 10014, 10037, 10043})
_WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
_TOO_LARGE = 10054
_STORE_FAILED = 10077
_FULL = frozenset({10002, 10023, 10047})
"""The account, or the server, has no room for more."""
_BUSY = frozenset({10158, 10167})
"""Servers of a cluster are still storing a message with the same id, or have too many others to store: it is to be
repeated."""
_LEADERLESS = 10008
"""Servers of a cluster are electing who answers: ask again."""
_SEQUENCE_AT_END = re.compile(r"(\d+)\s*$")


class ApiFault(msgspec.Struct, frozen=True):
    """The `error` member of a JetStream answer."""

    code: int = 0
    err_code: int = 0
    description: str = ""


def error_from(fault: ApiFault, *, doing: str, size: int = 0) -> BusError:
    message = f"{doing}: {fault.description}"
    if fault.err_code in _NOT_FOUND:
        return BusNotFound(message)
    if fault.err_code in _WRONG_LAST_SEQUENCE:
        found = _SEQUENCE_AT_END.search(fault.description)
        return BusConflict(message, revision=int(found.group(1)) if found else 0)
    if fault.err_code == _TOO_LARGE:
        return PayloadTooLarge(message, size=size, limit=size - 1)
    if fault.err_code in _FULL or (fault.err_code == _STORE_FAILED and "maximum" in fault.description):
        return StreamFull(message)
    if fault.code == 503 or fault.err_code in _BUSY:
        return BusUnavailable(message)
    return BusRefused(message, code=fault.code, err_code=fault.err_code)


async def api_call(bus: Bus, operation: str, body: Json | None = None, *, deadline_s: float) -> Json:
    """One call to `$JS.API.<operation>`. Repeated until it is answered by somebody who may, so only for operations that
    may run twice."""
    payload = json.dumps(body).encode() if body is not None else b""

    async def attempt(timeout_s: float) -> Json:
        answered = (await bus.ask(f"$JS.API.{operation}", payload, deadline_s=timeout_s)).data
        answer = cast(Json, json.loads(answered))
        if answer.get("error", {}).get("err_code") == _LEADERLESS:
            raise _error_in(answer, operation)
        return answer

    answer = await until_deadline(attempt, deadline_s=deadline_s, attempt_timeout_s=bus.attempt_timeout_s)
    if "error" in answer:
        raise _error_in(answer, operation)
    return answer


def _error_in(answer: Json, operation: str) -> BusError:
    return error_from(msgspec.convert(answer["error"], ApiFault), doing=f"JetStream {operation}")
