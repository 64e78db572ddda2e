"""Reading messages of a stream by sequence, without a consumer: how trainer ranks fetch the rows of a batch.

Neighbouring sequences travel in one batched request. The bytes in flight are bounded over all parallel requests
together.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusNotFound, BusRefused, BusTimeout, BusUnavailable, NoResponders
from trimtab.fabric.bus.inbox import CallbackSlot, description_of, status_of
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.names import Headers
from trimtab.fabric.bus.retry import RETRY_BACKOFF, until_deadline

DEFAULT_MAX_BYTES = 16 * 1024 * 1024
MAX_RUN = 256
_PIECE = 64
"""Many enough that a question costs little beside its answer, few enough that the first is there soon."""
_SERVER_HEADERS = frozenset(
    {"Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence"}
)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    subject: str
    payload: bytes
    sequence: int
    timestamp: str
    _all_headers: Headers

    @classmethod
    def from_message(cls, message: Msg) -> StoredMessage:
        headers = message.headers or {}
        return cls(
            subject=headers["Nats-Subject"],
            payload=message.data,
            sequence=int(headers["Nats-Sequence"]),
            timestamp=headers["Nats-Time-Stamp"],
            _all_headers=headers,
        )

    @property
    def headers(self) -> Headers:
        """Those of its publisher."""
        return {name: value for name, value in self._all_headers.items() if name not in _SERVER_HEADERS}


@dataclass(frozen=True)
class StoredMessages:
    """What was asked for: the messages that exist by sequence, and the sequences that do not."""

    messages: dict[int, StoredMessage]
    missing: tuple[int, ...]

    def complete(self) -> dict[int, StoredMessage]:
        if self.missing:
            shown = ", ".join(map(str, self.missing[:10]))
            raise BusNotFound(f"{len(self.missing)} messages are gone: {shown}", sequences=self.missing)
        return self.messages


def contiguous_runs(sequences: Iterable[int], *, max_run: int = MAX_RUN) -> list[tuple[int, int]]:
    """(first, count) of the runs of neighbours, in order, duplicates folded, none longer than max_run."""
    runs: list[tuple[int, int]] = []
    for sequence in sorted(set(sequences)):
        if runs and sequence == runs[-1][0] + runs[-1][1] and runs[-1][1] < max_run:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((sequence, 1))
    return runs


async def get_messages(
    bus: Bus,
    stream: str,
    sequences: Sequence[int],
    *,
    deadline_s: float,
    parallel: int = 4,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> StoredMessages:
    """All of them, up to `parallel` requests at a time. `max_bytes` in flight may be exceeded by one message a
    request.

    Any replica of the stream answers, also one that has not caught up yet. What it does not have is asked for again
    until it is there, or until the stream's leader says that it is gone.
    """
    found: dict[int, StoredMessage] = {}
    turn = asyncio.Semaphore(parallel)
    share = max(1, max_bytes // parallel)

    async def read(first: int, count: int) -> None:
        async with turn:
            await _read_run(bus, stream, first=first, count=count, max_bytes=share, found=found)

    missing = sorted(set(sequences))
    attempt = 0
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                await _all_or_first_error([read(first, count) for first, count in contiguous_runs(missing)])
                missing = [sequence for sequence in missing if sequence not in found]
                if not missing or not await _are_kept(bus, stream, missing, deadline_s=deadline_s):
                    break
                await asyncio.sleep(RETRY_BACKOFF.delay_s(attempt))
                attempt += 1
    except TimeoutError:
        raise BusTimeout(f"reading {len(sequences)} messages of {stream!r} took over {deadline_s:.3g} s") from None
    return StoredMessages(messages=found, missing=tuple(missing))


async def get_in_pieces(
    bus: Bus,
    stream: str,
    sequences: Iterable[int],
    *,
    deadline_s: float,
    piece: int = _PIECE,
    parallel: int = 4,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> AsyncGenerator[StoredMessages, None]:
    """The same by ascending sequence, `piece` of them at a time, for who has work to do on each: the next ones come
    meanwhile, and do not wait for that work. The deadline is for all of them."""
    clock = asyncio.get_running_loop().time
    end = clock() + deadline_s
    turn = asyncio.Semaphore(parallel)

    async def read(piece_of: Sequence[int]) -> StoredMessages:
        async with turn:
            left = max(0.001, end - clock())
            share = max(1, max_bytes // parallel)
            return await get_messages(bus, stream, piece_of, deadline_s=left, parallel=1, max_bytes=share)

    wanted = sorted(set(sequences))
    reads = [asyncio.create_task(read(wanted[first : first + piece])) for first in range(0, len(wanted), piece)]
    try:
        for one in reads:
            yield await one
    finally:
        for one in reads:
            one.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


async def _are_kept(bus: Bus, stream: str, sequences: Sequence[int], *, deadline_s: float) -> bool:
    """Whether the stream's leader, which alone answers this, still has any of them."""
    info = await api_call(bus, f"STREAM.INFO.{stream}", {"deleted_details": True}, deadline_s=deadline_s)
    state = info["state"]
    deleted = frozenset(state.get("deleted") or ())
    return any(state["first_seq"] <= one <= state["last_seq"] and one not in deleted for one in sequences)


async def get_following(
    bus: Bus, stream: str, *, after_sequence: int, subject: str, count: int, deadline_s: float
) -> list[StoredMessage]:
    """The next messages on the subject, wildcards included, at most `count`; empty when there is none."""

    async def attempt(timeout_s: float) -> list[StoredMessage]:
        return await _request_batch(
            bus,
            stream,
            first=after_sequence + 1,
            count=count,
            max_bytes=DEFAULT_MAX_BYTES,
            subject=subject,
            timeout_s=timeout_s,
        )

    return await until_deadline(attempt, deadline_s=deadline_s, attempt_timeout_s=bus.attempt_timeout_s)


async def _all_or_first_error(reads: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Unlike a TaskGroup it raises the error itself, not a group; like one it leaves nothing running behind."""
    tasks = [asyncio.create_task(read) for read in reads]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_run(
    bus: Bus, stream: str, *, first: int, count: int, max_bytes: int, found: dict[int, StoredMessage]
) -> None:
    end = first + count
    following = first

    async def attempt(timeout_s: float) -> int:
        """Reads one batch of the run; returns the sequence to go on from."""
        batch = await _request_batch(
            bus, stream, first=following, count=end - following, max_bytes=max_bytes, timeout_s=timeout_s
        )
        for message in batch:
            # A batch skips over deleted messages and goes on past the run; those were not asked for.
            if message.sequence < end:
                found[message.sequence] = message
        return batch[-1].sequence + 1 if batch else end

    while following < end:
        # The caller's deadline ends this from outside; here it only bounds the repeats.
        following = await until_deadline(
            attempt, deadline_s=bus.request_timeout_s, attempt_timeout_s=bus.attempt_timeout_s
        )


async def _request_batch(
    bus: Bus, stream: str, *, first: int, count: int, max_bytes: int, subject: str | None = None, timeout_s: float
) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    ended: asyncio.Future[BusError | None] = asyncio.get_running_loop().create_future()

    def answered(message: Msg) -> None:
        if ended.done():
            return
        status = status_of(message)
        if status is None:
            messages.append(StoredMessage.from_message(message))
        elif status in ("204", "404"):
            ended.set_result(None)
        else:
            ended.set_result(_refusal(stream, status, description_of(message)))

    def lost() -> None:
        if not ended.done():
            ended.set_result(BusUnavailable(f"the connection was lost while reading {stream!r}"))

    question = {"seq": first, "batch": count, "max_bytes": max_bytes}
    body = json.dumps(question if subject is None else question | {"next_by_subj": subject}).encode()
    end = asyncio.get_running_loop().time() + timeout_s
    await bus.wait_connected(deadline_s=timeout_s)
    reply = ""
    try:
        async with asyncio.timeout_at(end):
            reply = bus.register(CallbackSlot(answered, lost))
            await bus.send(f"$JS.API.DIRECT.GET.{stream}", body, reply=reply)
            error = await ended
    except TimeoutError:
        raise BusTimeout(f"stream {stream!r} did not end a batch within {timeout_s:.3g} s") from None
    finally:
        bus.release(reply)
    if error is not None:
        raise error
    return messages


def _refusal(stream: str, status: str, description: str) -> BusError:
    if status == "503":
        return NoResponders(f"stream {stream!r} does not exist or does not allow direct reads")
    return BusRefused(f"direct read of {stream!r}: {description}", code=int(status), err_code=0)
