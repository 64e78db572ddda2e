"""Reading a stream in order, each message once, through lost connections and server restarts.

It reads through a throw-away consumer of its own. Whenever that may have missed something (a lost connection, a gap in
its numbering, the consumer gone) it makes a new one that starts behind the last message it has handed out.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

import structlog

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError, BusNotFound, BusRefused, BusTimeout, BusUnavailable, StreamRewound
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.retry import RETRY_BACKOFF

_log = structlog.get_logger(__name__)
_GONE_AFTER_S = 60.0
# A pull goes on asking the consumer it knows, which may have died with its server: after this time we look again.
_PULL_S = 2.0


class StreamReader:
    """Nothing is acknowledged: where to begin is the reader's own business."""

    def __init__(
        self,
        bus: Bus,
        *,
        stream: str,
        subject: str | None = None,
        after_sequence: int = 0,
        newest_per_subject: bool = False,
        headers_only: bool = False,
        never_rewound: bool = False,
    ) -> None:
        """`newest_per_subject` begins with the present state: each subject's newest message, then all that follow. With
        `never_rewound` a stream that ends before what was read of it, or has something else in its place, is an
        error, StreamRewound."""
        self._bus = bus
        self._stream = stream
        self._subject = subject
        self._newest_per_subject = newest_per_subject
        self._headers_only = headers_only
        self._never_rewound = never_rewound
        self._puller: Puller | None = None
        self._consumer = ""
        self._epoch = -1
        self._consumer_sequence = 0
        self.last_sequence = after_sequence
        self._last_stored_ns: int | None = None
        """When the last message was stored."""
        self.caught_up = False
        """Whether everything that was in the stream at the last read has been handed out."""

    async def read(self, *, batch: int, wait_s: float) -> list[Delivery]:
        """The next messages, empty when none came in time. Lost connections are ridden out while the time lasts."""
        clock = asyncio.get_running_loop().time
        end = clock() + wait_s
        failures = 0
        while True:
            try:
                made = await self._ensure_consumer(deadline_s=max(1.0, end - clock()))
                if made and self.caught_up:
                    return []
                deliveries = await self._pull(batch=batch, wait_s=max(0.001, min(_PULL_S, end - clock())))
                if not deliveries and not self.caught_up:
                    await self._look_ahead(deadline_s=max(1.0, end - clock()))
                if deliveries or self.caught_up or clock() >= end:
                    return deliveries
            except (BusTimeout, BusUnavailable, BusNotFound, BusRefused) as error:
                await self._drop_consumer()
                delay = RETRY_BACKOFF.delay_s(failures)
                failures += 1
                if clock() + delay >= end:
                    raise BusTimeout(f"reading {self._stream!r} could not go on: {error}") from error
                await asyncio.sleep(delay)

    async def _ensure_consumer(self, *, deadline_s: float) -> bool:
        """Whether a new one had to be made."""
        if self._puller is not None and self._epoch == self._bus.epoch:
            return False
        await self._make_consumer(deadline_s=deadline_s)
        return True

    async def _pull(self, *, batch: int, wait_s: float) -> list[Delivery]:
        assert self._puller is not None
        deliveries = await self._puller.fetch(batch=batch, wait_s=wait_s)
        for position, delivery in enumerate(deliveries):
            self._consumer_sequence += 1
            if delivery.consumer_sequence != self._consumer_sequence:
                if position == 0:
                    raise BusUnavailable("the reader's consumer skipped a message")
                # What came before the gap is handed out now; the next read begins behind it with a new consumer.
                await self._drop_consumer()
                return deliveries[:position]
            self.last_sequence, self._last_stored_ns = delivery.sequence, delivery.timestamp_ns
            self.caught_up = delivery.pending == 0
        return deliveries

    async def _make_consumer(self, *, deadline_s: float) -> None:
        await self._drop_consumer()
        epoch = self._bus.epoch
        name = f"reader-{uuid.uuid4().hex}"
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "headers_only": self._headers_only,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": round(_GONE_AFTER_S * 1e9),
        }
        if self._newest_per_subject and self.last_sequence == 0:
            config["deliver_policy"] = "last_per_subject"
        else:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self.last_sequence + 1}
        if self._never_rewound:
            await self._check_not_rewound(deadline_s=deadline_s)
        operation = f"CONSUMER.CREATE.{self._stream}.{name}"
        if self._subject is not None:
            config["filter_subject"] = self._subject
            operation += f".{self._subject}"
        body = {"stream_name": self._stream, "config": config}
        info = await api_call(self._bus, operation, body, deadline_s=deadline_s)
        self._puller = await Puller.open(self._bus, stream=self._stream, consumer=name)
        self._consumer = name
        self._consumer_sequence = 0
        self._epoch = epoch
        self.caught_up = info.get("num_pending", 0) == 0

    async def _check_not_rewound(self, *, deadline_s: float) -> None:
        """The server itself would wait until the numbers have been used again, and leave out what has them."""
        info = await api_call(self._bus, f"STREAM.INFO.{self._stream}", deadline_s=deadline_s)
        last = int(info["state"]["last_seq"])
        if last < self.last_sequence:
            raise StreamRewound(f"{self._stream!r} ends with message {last}, and {self.last_sequence} was read before")
        if self._last_stored_ns is None:
            return
        # Others may have used the numbers again before we looked.
        read = {"seq": self.last_sequence}
        try:
            found = await api_call(self._bus, f"STREAM.MSG.GET.{self._stream}", read, deadline_s=deadline_s)
        except BusNotFound:
            return  # deleted, as all that nobody needs any more
        if _microseconds(found["message"]["time"]) != self._last_stored_ns // 1000:
            raise StreamRewound(f"{self._stream!r} has another message {self.last_sequence} than was read before")

    async def _look_ahead(self, *, deadline_s: float) -> None:
        """A server counts a message among those that are to come, and passes it over, where its file has wrong bits in
        that place. So what is to come may never come.
        """
        after = {"seq": self.last_sequence + 1, "next_by_subj": self._subject or ">"}
        try:
            await api_call(self._bus, f"STREAM.MSG.GET.{self._stream}", after, deadline_s=deadline_s)
        except BusNotFound:
            _log.error("unreadable_messages", stream=self._stream, after=self.last_sequence)
            self.caught_up = True

    async def _drop_consumer(self) -> None:
        puller, self._puller = self._puller, None
        self._consumer = ""
        if puller is not None:
            await puller.close()

    async def close(self) -> None:
        consumer = self._consumer
        await self._drop_consumer()
        if consumer:
            try:
                await api_call(self._bus, f"CONSUMER.DELETE.{self._stream}.{consumer}", deadline_s=1.0)
            except BusError:
                return  # it removes itself after a time of inactivity

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _microseconds(time: str) -> int:
    """Since 1970."""
    return (datetime.fromisoformat(time) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
