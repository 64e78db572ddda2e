"""Where the processes of a transfer under fire meet: the model, the servers, and their notes for the checker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.weights.layout import StateLayout
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.store.position import Position

POLICY = "p"
MEMBERS = ("slow", "leaver")
CHUNK_BYTES = 96 << 10
RANGE_BYTES = 40 << 10
"""Of a size that gives a small model many chunks, and fetches every way there is."""
COLLECTION = CollectionRules(keep_versions=3, lease_ttl_s=6.0, grace_s=3.0)
DEADLINE_S = 60.0


def model() -> StateLayout:
    """In eight blocks, because each dtype has one of its own."""
    halves = ("BF16", "F16", "I16", "U16")
    return StateLayout.of(
        {
            "embedding": ("F32", (10, 1000)),
            "positions": ("I32", (10, 1000)),
            **{f"up.{dtype}": (dtype, (40, 1000)) for dtype in halves},
            "q": ("I8", (25, 1001)),
            "r": ("U8", (25, 1001)),
        }
    )


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of notes. Which fields are set depends on what happened."""

    what: str
    position: Position | None = None
    sha256: str = ""
    error: str = ""
    reason: str = ""
    pinned_s: float | None = None


@dataclass(frozen=True)
class Notes:
    """An append-only file. A line is one write, so a killed process leaves whole lines."""

    path: Path

    def add(self, line: Line) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(descriptor, msgspec.json.encode(line) + b"\n")
        os.close(descriptor)

    def lines(self) -> list[Line]:
        text = self.path.read_bytes() if self.path.exists() else b""
        return [msgspec.json.decode(line, type=Line) for line in text.splitlines()]


@dataclass(frozen=True)
class Site:
    """Where everything of one test is; passed to every process of it."""

    nats: NatsSettings
    store: ObjectStoreSettings
    folder: Path
    copies: Path
    job: str
    seed_text: str

    @property
    def signer(self) -> Signer:
        return Signer(self.seed_text)

    @property
    def verifier(self) -> Verifier:
        return Verifier([self.signer.public_text])

    @property
    def ledger(self) -> Notes:
        """Every version with the SHA-256 of its weights, before it is published."""
        return Notes(self.folder / "ledger")

    @property
    def trainer_notes(self) -> Notes:
        return Notes(self.folder / "trainer")

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def notes(self, member: str) -> Notes:
        return Notes(self.folder / f"notes-{member}")

    def copy_of(self, member: str) -> Path:
        return self.copies / member

    def spool_of(self, member: str) -> Path:
        return self.folder / f"spool-{member}"

    async def pointers(self, bus: Bus) -> KeyValue:
        return await KeyValue.declare(bus, JobTopology("t", self.job).weights, deadline_s=DEADLINE_S)
