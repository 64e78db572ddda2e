"""What the server needs of a protocol: reading a request, and three ways of answering it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trimtab.rollout.gateway.exchange import Answer, Ask, GatewayError, Piece


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What an answer is known by: an id of its own, without the protocol's prefix, and the time in seconds."""

    ident: str
    created: int


class Unauthorized(GatewayError):
    """No session has this key."""


class TooLarge(GatewayError):
    """The request is larger than the server reads."""


class NotFound(GatewayError):
    """Nothing is served under this path."""


class Writer(Protocol):
    """One answer as a stream of server-sent events. Every method says what to send now."""

    def begin(self) -> Iterable[bytes]: ...

    def piece(self, piece: Piece) -> Iterable[bytes]: ...

    def answer(self, index: int, answer: Answer) -> Iterable[bytes]:
        """The answer at `index` is whole."""

    def end(self) -> Iterable[bytes]: ...

    def fail(self, error: GatewayError) -> Iterable[bytes]:
        """It went wrong after it began, when no status can say so any more."""


class Reply(Protocol):
    """A request that was understood, and how it wants to be answered."""

    @property
    def ask(self) -> Ask: ...

    @property
    def streams(self) -> bool: ...

    def whole(self, answers: Sequence[Answer], stamp: Stamp) -> Mapping[str, Any]: ...

    def writer(self, stamp: Stamp) -> Writer: ...


class Surface(Protocol):
    """One protocol."""

    path: str

    def read(self, body: bytes) -> Reply:
        """Raises Refused."""

    def failure(self, error: GatewayError) -> tuple[int, Mapping[str, Any]]:
        """Status and body."""


KEEP_ALIVE = b": the model is still busy\n\n"
"""A comment: every client reads over it."""


def event(data: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """Server-sent. JSON has no raw line breaks, so it is one line of data."""
    line = b"data: " + compact(data).encode() + b"\n\n"
    return line if name is None else b"event: " + name.encode() + b"\n" + line


def compact(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
