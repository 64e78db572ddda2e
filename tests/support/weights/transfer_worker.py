"""Processes that publish and pull weights until they are killed, and note what they do."""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import msgspec
import numpy as np
import structlog
from botocore.loaders import JSONFileLoader

from tests.support.weights.transfer_site import (
    CHUNK_BYTES,
    COLLECTION,
    DEADLINE_S,
    MEMBERS,
    POLICY,
    RANGE_BYTES,
    Line,
    Notes,
    Site,
    model,
)
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusNotFound
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.client import DEFAULT_DEADLINE_S, ObjectInfo, ObjectStore
from trimtab.fabric.objects.errors import ObjectNotFound
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.codec.blocks import decode_block, encode_change, encode_whole
from trimtab.weights.codec.change import Bytes, find_change
from trimtab.weights.layout import Block, StateLayout
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.puller import PULL_FAILURES, PullLimits, WeightPuller
from trimtab.weights.store.chunk_fetch import MissingChunk
from trimtab.weights.store.keys import lease_prefix
from trimtab.weights.store.leases import Lease
from trimtab.weights.store.position import Position
from trimtab.weights.store.rate import RateLimit
from trimtab.weights.upkeep import UpkeepRules

_RULES = UpkeepRules(anchor_every=5, fold_every=3, collection=COLLECTION, collect_every_s=0.2)
_RATE_BYTES_PER_S = 500e3
_CHECKPOINTS = 6


def prepare() -> None:
    """What a template process does before it forks workers: compile every kernel that they need."""
    _parse_once()
    layout = model()
    base = first_weights(layout)
    for share in (0.01, 0.12, 0.5):
        target = base.copy()
        _train(target, layout, share, np.random.default_rng(0))
        for block in layout.blocks:
            old, new = base[block.start : block.end], target[block.start : block.end]
            held, decoded = old.view(), np.empty_like(old)
            held.flags.writeable = False  # as views of a host copy are
            for before in (old, held):
                change = find_change(before, new, width=block.element.width)
                assert change is not None
                encoded = encode_change(before, change, block.element)
                decode_block(encoded.mode, before, encoded.payload, block.element, decoded)
                assert np.array_equal(decoded, new)
            encoded = encode_whole(new, block.element)
            decode_block(encoded.mode, None, encoded.payload, block.element, decoded)


def _parse_once() -> None:
    """Every S3 client parses the same megabytes of JSON, which takes longer than some workers live."""
    parse = JSONFileLoader.load_file
    known: dict[str, Any] = {}

    def load_file(loader: JSONFileLoader, file_path: str) -> Any:
        if file_path not in known:
            known[file_path] = parse(loader, file_path)
        return known[file_path]

    JSONFileLoader.load_file = load_file  # type: ignore[method-assign, assignment]
    boto3.session.Session().client("s3", region_name="us-east-1").close()


def first_weights(layout: StateLayout) -> Bytes:
    return np.frombuffer(random.Random(layout.data_bytes).randbytes(layout.data_bytes), dtype=np.uint8).copy()


def _train(weights: Bytes, layout: StateLayout, share: float, rng: np.random.Generator) -> None:
    """Moves a share of the weights to a neighbour, in place."""
    for block in layout.blocks:
        elements = weights[block.start : block.end].view(f"u{block.element.width}")
        elements += (rng.random(elements.size) < share).astype(elements.dtype)


def _note_events(notes: Notes, *wanted: str) -> None:
    """The log becomes notes: what a trainer or a puller says to operators is what the checker wants to know too."""

    def note(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        if event["event"] in wanted:
            notes.add(Line(event["event"], error=str(event.get("what", "")), reason=str(event)))
        raise structlog.DropEvent

    structlog.configure(processors=[note])


@dataclass
class Training:
    """Weights in training. Checkpoints are files in the order they were saved, whatever the version."""

    layout: StateLayout
    folder: Path
    version: int
    weights: Bytes

    @classmethod
    def resumed(cls, layout: StateLayout, folder: Path, chance: random.Random) -> Training:
        """From the last checkpoint, or sometimes from an older one: what was published since is then no more."""
        folder.mkdir(exist_ok=True)
        saved = sorted(path for path in folder.iterdir() if path.suffix == ".weights")
        if not saved:
            return cls(layout, folder, 0, first_weights(layout))
        chosen = chance.choice(saved) if chance.random() < 0.4 else saved[-1]
        weights = np.fromfile(chosen, dtype=np.uint8)
        return cls(layout, folder, int(chosen.stem.split("-")[1]), weights)

    def save(self) -> None:
        saved = sorted(self.folder.glob("*.weights"))
        number = int(saved[-1].stem.split("-")[0]) + 1 if saved else 0
        writing = self.folder / "writing"
        self.weights.tofile(writing)
        writing.rename(self.folder / f"{number:08d}-{self.version}.weights")
        for path in saved[: -_CHECKPOINTS + 1]:
            path.unlink()

    def step(self, rng: np.random.Generator) -> None:
        _train(self.weights, self.layout, rng.uniform(0.005, 0.12), rng)
        if rng.random() < 0.2:
            block = self.layout.blocks[rng.integers(len(self.layout.blocks))]
            self.weights[block.start : block.end] = rng.integers(0, 256, block.size, dtype=np.uint8)
        self.version += 1

    def read(self, block: Block, out: Bytes) -> None:
        np.copyto(out, self.weights[block.start : block.end])


def publish_until_killed(site: Site, life: int) -> None:
    _note_events(site.trainer_notes, "upkeep_failed", "weights_collected")
    asyncio.run(_publish(site, life))


async def _publish(site: Site, life: int) -> None:
    chance, rng = random.Random(life), np.random.default_rng(life)
    async with await Bus.connect(site.nats, name="trainer") as bus, ObjectStore(site.store) as store:
        training = Training.resumed(model(), site.checkpoints, chance)
        publisher = await WeightPublisher.open(
            store, await site.pointers(bus), job=site.job, policy=POLICY, signer=site.signer, rules=_RULES,
            folder=site.folder / "scratch", threads=2, clock=time.time, deadline_s=DEADLINE_S,
            chunk_bytes=CHUNK_BYTES,
        )  # fmt: skip
        for turn in _counting():
            position = Position(publisher.epoch, training.version)
            site.ledger.add(Line("publishing", position, hashlib.sha256(training.weights.data).hexdigest()))
            training.save()
            captured = await asyncio.to_thread(publisher.capture, training)
            await publisher.publish(training.version, captured, deadline_s=DEADLINE_S)
            site.trainer_notes.add(Line("published", position))
            if turn % 8 == 7:
                await publisher.flush()  # shows what upkeep has failed with and does not report itself
            await asyncio.sleep(chance.uniform(0, 0.03))
            training.step(rng)


class LeaseWatch(ObjectStore):
    """Remembers when a member's lease was last written with the route of a pull in it."""

    pinned_at: float | None = None

    async def put(self, key: str, body: bytes, *, deadline_s: float = DEFAULT_DEADLINE_S) -> ObjectInfo:
        info = await super().put(key, body, deadline_s=deadline_s)
        if key.startswith(lease_prefix(POLICY)):
            self.pinned_at = time.monotonic() if msgspec.json.decode(body, type=Lease).pins else None
        return info

    def pinned_s(self) -> float | None:
        return None if self.pinned_at is None else time.monotonic() - self.pinned_at


def pull_until_killed(site: Site, member: str, life: int) -> None:
    asyncio.run(_pull(site, member, life))


async def _pull(site: Site, member: str, life: int) -> None:
    """The first member is slow, and takes every pointer; the second leaves at times and joins again with nothing."""
    chance, notes = random.Random(life), site.notes(member)
    is_slow = member == MEMBERS[0]
    rate = RateLimit(_RATE_BYTES_PER_S) if is_slow else None
    limits = PullLimits(rate=rate, range_bytes=RANGE_BYTES)
    async with await Bus.connect(site.nats, name=member) as bus, LeaseWatch(site.store) as store:
        pointers = await site.pointers(bus)

        async def opened() -> WeightPuller:
            puller = WeightPuller(
                store, POLICY, site.verifier, folder=site.copy_of(member), spool=site.spool_of(member), member=member,
                limits=limits, threads=2,
            )  # fmt: skip
            await puller.open()
            return puller

        puller = await opened()

        def planned_again(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
            if event["event"] in ("pull_planned_again", "host_copy_discarded"):
                notes.add(Line(event["event"], reason=str(event), pinned_s=store.pinned_s()))
            raise structlog.DropEvent

        structlog.configure(processors=[planned_again])
        while True:
            pointer = await _announced(pointers) if is_slow or chance.random() < 0.5 else None
            store.pinned_at = None
            try:
                position = await puller.pull(pointer, deadline_s=DEADLINE_S)
            except PULL_FAILURES as error:
                gone = isinstance(error, MissingChunk | ObjectNotFound)
                pinned_s = store.pinned_s() if gone else None
                notes.add(Line("failed", error=type(error).__name__, reason=str(error), pinned_s=pinned_s))
            else:
                notes.add(Line("committed", position))
            if chance.random() < 0.1:
                await asyncio.sleep(chance.uniform(0.2, 0.6))
            elif not is_slow and chance.random() < 0.1:
                notes.add(Line("leaving"))
                await puller.close()
                shutil.rmtree(site.copy_of(member))
                shutil.rmtree(site.spool_of(member))
                puller = await opened()
            else:
                await asyncio.sleep(chance.uniform(0, 0.02))


async def _announced(pointers: KeyValue) -> WeightPointer | None:
    try:
        return decode((await pointers.get(POLICY, deadline_s=DEADLINE_S)).value, WeightPointer)
    except BusNotFound:
        return None


def _counting() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1
