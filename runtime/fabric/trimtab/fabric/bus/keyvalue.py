"""A key-value bucket with revisions, laid out as every NATS client lays it out, so that `nats kv` can look into it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from nats.aio.msg import Msg

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import StoredMessage
from trimtab.fabric.bus.errors import BusConflict, BusError, BusNotFound, BusRefused, InvalidName, NoResponders
from trimtab.fabric.bus.inbox import description_of, status_of
from trimtab.fabric.bus.names import Headers
from trimtab.fabric.bus.publisher import MESSAGE_ID_HEADER, read_acknowledgement
from trimtab.fabric.bus.retry import until_deadline
from trimtab.fabric.bus.streams import declare_stream
from trimtab.fabric.bus.topology import BucketSpec

OPERATION_HEADER = "KV-Operation"
_EXPECTED_HEADER = "Nats-Expected-Last-Subject-Sequence"
_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")
MAX_KEY_CHARS = 512


@dataclass(frozen=True)
class Entry:
    key: str
    value: bytes
    revision: int


def checked_key(key: str) -> str:
    if not _KEY.fullmatch(key) or len(key) > MAX_KEY_CHARS:
        raise InvalidName(f"key {key[:80]!r} is not made of [-/_=a-zA-Z0-9] tokens separated by dots; escape it first")
    return key


def is_removal(headers: Headers) -> bool:
    """A delete or purge by a client."""
    return headers.get(OPERATION_HEADER) in ("DEL", "PURGE")


def _new_id() -> str:
    return uuid.uuid4().hex


class KeyValue:
    """Declare or bind with `KeyValue.declare`. Every write carries an id, so that repeating it after a lost answer is
    safe.
    """

    def __init__(self, bus: Bus, spec: BucketSpec, *, new_id: Callable[[], str] = _new_id) -> None:
        self.bus = bus
        self.spec = spec
        self._new_id = new_id

    @classmethod
    async def declare(cls, bus: Bus, spec: BucketSpec, *, deadline_s: float) -> KeyValue:
        await declare_stream(bus, spec, deadline_s=deadline_s)
        return cls(bus, spec)

    async def get(self, key: str, *, deadline_s: float | None = None) -> Entry:
        message = await self._last(key, deadline_s=self._deadline(deadline_s))
        if message is None or is_removal(message.headers):
            raise BusNotFound(f"bucket {self.spec.name!r} has no key {key!r}")
        return Entry(key=key, value=message.payload, revision=message.sequence)

    async def put(self, key: str, value: bytes, *, deadline_s: float | None = None) -> int:
        """Writes whatever was there before; returns the new revision."""
        return await self._write(key, value, expected=None, deadline_s=self._deadline(deadline_s))

    async def create(self, key: str, value: bytes, *, deadline_s: float | None = None) -> int:
        """Only when the key does not exist; otherwise BusConflict with the revision that does."""
        limit_s = self._deadline(deadline_s)
        try:
            return await self._write(key, value, expected=0, deadline_s=limit_s)
        except BusConflict:
            message = await self._last(key, deadline_s=limit_s)
            if message is not None and not is_removal(message.headers):
                raise
            # What is in the way is the marker of a removed key.
            return await self._write(key, value, expected=message.sequence if message else 0, deadline_s=limit_s)

    async def update(self, key: str, value: bytes, *, revision: int, deadline_s: float | None = None) -> int:
        """Compare-and-swap: only when the key is still at `revision`; otherwise BusConflict with the present one."""
        return await self._write(key, value, expected=revision, deadline_s=self._deadline(deadline_s))

    async def delete(self, key: str, *, revision: int | None = None, deadline_s: float | None = None) -> None:
        """Leaves a marker that watchers see. Deleting a key that does not exist is no error."""
        headers = {OPERATION_HEADER: "DEL"}
        await self._write(key, b"", expected=revision, extra=headers, deadline_s=self._deadline(deadline_s))

    def _deadline(self, deadline_s: float | None) -> float:
        return self.bus.request_timeout_s if deadline_s is None else deadline_s

    def _subject(self, key: str) -> str:
        return f"$KV.{self.spec.name}.{checked_key(key)}"

    async def _last(self, key: str, *, deadline_s: float) -> StoredMessage | None:
        subject = self._subject(key)

        async def attempt(timeout_s: float) -> Msg:
            try:
                return await self.bus.ask(f"$JS.API.DIRECT.GET.{self.spec.stream}.{subject}", b"", deadline_s=timeout_s)
            except NoResponders:
                raise NoResponders(
                    f"bucket {self.spec.name!r} does not exist, or JetStream is still starting"
                ) from None

        message = await until_deadline(attempt, deadline_s=deadline_s, attempt_timeout_s=self.bus.attempt_timeout_s)
        status = status_of(message) if "Nats-Sequence" not in (message.headers or {}) else None
        if status == "404":
            return None
        if status is not None:
            raise BusRefused(f"reading {key!r}: {description_of(message)}", code=int(status), err_code=0)
        return StoredMessage.from_message(message)

    async def _write(
        self, key: str, value: bytes, *, expected: int | None, extra: Headers | None = None, deadline_s: float
    ) -> int:
        subject = self._subject(key)
        message_id = self._new_id()
        headers = {**(extra or {}), MESSAGE_ID_HEADER: message_id}
        if expected is not None:
            headers[_EXPECTED_HEADER] = str(expected)
        attempts = 0

        async def attempt(timeout_s: float) -> int:
            nonlocal attempts
            attempts += 1
            message = await self.bus.ask(subject, value, headers=headers, deadline_s=timeout_s)
            outcome = read_acknowledgement(message, subject=subject, size=len(value))
            if isinstance(outcome, BusError):
                raise outcome
            return outcome.sequence

        try:
            return await until_deadline(attempt, deadline_s=deadline_s, attempt_timeout_s=self.bus.attempt_timeout_s)
        except BusConflict as conflict:
            # The server compares revisions before it looks at message ids: a write whose answer was lost meets itself.
            if attempts > 1:
                last = await self._last(key, deadline_s=deadline_s)
                if last is not None and last.headers.get(MESSAGE_ID_HEADER) == message_id:
                    return last.sequence
            raise BusConflict(
                f"key {key!r} of bucket {self.spec.name!r} is at revision {conflict.revision}, not {expected}",
                revision=conflict.revision,
            ) from None
