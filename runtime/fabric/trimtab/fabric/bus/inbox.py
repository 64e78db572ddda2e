"""Where answers arrive: one wildcard subscription per connection, with a slot per outstanding question.

Slots are settled by a plain function, so that an acknowledgement costs neither a task nor a timer of its own. When the
connection is lost every open slot hears of it at once, because the answer it waits for was lost with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nats.aio.msg import Msg

from trimtab.fabric.bus.client import EnduringClient

STATUS_HEADER = "Status"
DESCRIPTION_HEADER = "Description"


def status_of(message: Msg) -> str | None:
    """The inline status of a server message ("404", "503"), None for a message with content."""
    if message.data or not message.headers:
        return None
    return message.headers.get(STATUS_HEADER)


def description_of(message: Msg) -> str:
    return (message.headers or {}).get(DESCRIPTION_HEADER, "")


class Slot(Protocol):
    """One outstanding question: what to do with each answer, and what when the connection goes."""

    def answered(self, message: Msg) -> None: ...

    def lost(self) -> None: ...


@dataclass(slots=True)
class CallbackSlot:
    """A slot made of two functions."""

    on_answer: Callable[[Msg], None]
    on_lost: Callable[[], None]

    def answered(self, message: Msg) -> None:
        self.on_answer(message)

    def lost(self) -> None:
        self.on_lost()


class ReplyInbox:
    def __init__(self, client: EnduringClient) -> None:
        self._client = client
        self._prefix = f"{client.new_inbox()}."
        self._slots: dict[str, Slot] = {}
        self._next = 0

    async def open(self) -> None:
        await self._client.subscribe_prompt(f"{self._prefix}*", self._deliver)

    def register(self, slot: Slot) -> str:
        """Returns the reply subject whose messages go to the slot."""
        self._next += 1
        token = str(self._next)
        self._slots[token] = slot
        return self._prefix + token

    def release(self, reply_subject: str) -> None:
        self._slots.pop(reply_subject[len(self._prefix) :], None)

    def connection_lost(self) -> None:
        slots, self._slots = self._slots, {}
        for slot in slots.values():
            slot.lost()

    def _deliver(self, message: Msg) -> None:
        slot = self._slots.get(message.subject[len(self._prefix) :])
        if slot is not None:
            slot.answered(message)
