"""What the operator knows of a job's fleet and its pods do not: replicas that are wanted, what the autoscaler decided
and which trainers failed. A note on the bucket of balance reports, which whoever writes to trackers looks up anyway.

It holds the newest of each kind, so that whoever was away for a while, or reads it twice, tells each once.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.stream_notes import read_note, write_note
from trimtab.fabric.bus.topology import JobTopology

KEPT = 16
"""Decisions, and failures of trainers."""
MAX_TEXT = 256
"""Characters. All together stays below what a server keeps of metadata, also where each takes six bytes of JSON."""
_KEY = "trimtab.fleet"
_MAX_NAME = 253
_MAX_POOLS = 256

_Name = Annotated[str, Meta(max_length=_MAX_NAME)]
_Text = Annotated[str, Meta(max_length=MAX_TEXT)]
_Count = Annotated[int, Meta(ge=0)]


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The autoscaler changed the size of the fleet."""

    at: float
    """Unix time, by which it is known."""
    before: _Count
    after: _Count
    reason: _Text
    message: _Text
    maintainer: _Name
    waiting: float | None = None


class TrainerFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trainer's group was started again after a failure that counts."""

    trainer: _Name
    number: _Count
    """Counted since the trainer began; with its name it is known by it."""
    at: float
    """Unix time at which it was noted."""
    pod: _Name
    why: _Text = ""


class FleetNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    wanted: Annotated[dict[_Name, _Count], Meta(max_length=_MAX_POOLS)] = msgspec.field(default_factory=dict)
    """Replicas by pool."""
    decisions: Annotated[tuple[Decision, ...], Meta(max_length=KEPT)] = ()
    """Oldest first."""
    failures: Annotated[tuple[TrainerFailure, ...], Meta(max_length=KEPT)] = ()
    """Oldest first."""

    def followed_by(self, newer: FleetNote) -> FleetNote:
        """Both, as far as they are kept. What this one has already stays as it was noted first."""
        decided = {one.at: one for one in (*newer.decisions, *self.decisions)}
        failed = {(one.trainer, one.number): one for one in (*newer.failures, *self.failures)}
        return FleetNote(
            wanted=newer.wanted,
            decisions=tuple(sorted(decided.values(), key=lambda one: one.at)[-KEPT:]),
            failures=tuple(sorted(failed.values(), key=lambda one: (one.at, one.trainer, one.number))[-KEPT:]),
        )


async def write_fleet_note(bus: Bus, topology: JobTopology, note: FleetNote, *, deadline_s: float) -> None:
    text = msgspec.json.encode(note).decode()
    await write_note(bus, topology.balance.stream, _KEY, text, deadline_s=deadline_s)


async def read_fleet_note(bus: Bus, topology: JobTopology, *, deadline_s: float) -> FleetNote:
    """An empty one where nothing was noted, or where another version did in a way that this one cannot read."""
    text = await read_note(bus, topology.balance.stream, _KEY, deadline_s=deadline_s)
    try:
        return FleetNote() if text is None else msgspec.json.decode(text, type=FleetNote)
    except msgspec.DecodeError:
        return FleetNote()
