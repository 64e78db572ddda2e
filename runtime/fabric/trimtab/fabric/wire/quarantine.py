"""A task that was given up, kept with its error so that a person can see why and try it again."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.errors import OversizeError
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.values import Identifier, Index, Name, Slug, Text, Token, UnixSeconds


class QuarantinedTask(Message, frozen=True, kw_only=True):
    """Written by the worker that gave the task up, before it says so to anyone else."""

    KIND: ClassVar[int] = 14
    MAX_BYTES: ClassVar[int] = 256 << 10

    task_id: Token
    """Of a message that is no task, `sequence-` and its place in the queue."""
    job: Name
    prompt_id: Identifier | None = None
    error: Slug
    message: Text = ""
    where: Text = ""
    """The line of the workflow at which it failed, as far as there is one."""
    worker: Name
    pool: Name
    attempts: Index
    """Deliveries that were not handed back."""
    quarantined_at: UnixSeconds
    task: Task | None = None
    """To run it again. Absent when it is too large to be kept, or could not be read."""


def stored_entry(entry: QuarantinedTask) -> bytes:
    """The entry as the bucket holds it. One that is too large loses its task, and keeps what is known of the error."""
    try:
        return encode(entry)
    except OversizeError:
        return encode(msgspec.structs.replace(entry, task=None))
