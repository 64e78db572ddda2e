"""A new version over a slow, long link: as a delta to a pool that has the one before, and in full to one that has none.

The store is behind the link for both ends; the news of a version goes around it, over the bus.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.limited_link import Link, limited_link
from benchmarks.report import Bar, interleaved, note, paired_share
from benchmarks.weights.transfer_states import StateInMemory, TrainingStep
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.puller import WeightPuller
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.upkeep import UpkeepRules

PARAMETERS = 1 << 27
LINK = Link(bytes_per_s=100e6 / 8, shared=True, latency_s=0.05)
ROUNDS = 5
CAPTURES = 7
DEADLINE_S = 300.0
ROUND_TRIPS = 6
"""A delta's, one after the other: chunk, manifest, pointer read and pointer written; then manifest and chunk."""
RULES = UpkeepRules(
    anchor_every=1000,
    fold_every=None,
    collection=CollectionRules(keep_versions=50, lease_ttl_s=3600.0, grace_s=3600.0),
    collect_every_s=3600.0,
)


@dataclass(frozen=True)
class Transfer:
    """One version: how long `publish` took, and how long it took from then until the pool had committed it."""

    bytes: int
    publish_s: float
    pull_s: float

    @property
    def seconds(self) -> float:
        return self.publish_s + self.pull_s

    @property
    def wire_s(self) -> float:
        """What the link alone takes for the bytes, up and down."""
        return 2 * self.bytes / LINK.bytes_per_s


@dataclass(frozen=True)
class Ends:
    """Both sides of the link."""

    publisher: WeightPublisher
    puller: WeightPuller

    async def transfer(self, version: int, source: StateInMemory) -> Transfer:
        captured = self.publisher.capture(source)
        started = time.perf_counter()
        pointer = await self.publisher.publish(version, captured, deadline_s=DEADLINE_S)
        published = time.perf_counter()
        await self._pull(pointer)
        return Transfer(pointer.size_bytes, published - started, time.perf_counter() - published)

    async def _pull(self, pointer: WeightPointer) -> None:
        update = await self.puller.prepare(pointer, deadline_s=DEADLINE_S)
        if update is not None:
            with update:
                update.commit(threads=2)

    def check(self, source: StateInMemory) -> None:
        copy = self.puller.copy
        if copy is None or not all(
            np.array_equal(copy.block(block.index), source.data[block.start : block.end])
            for block in source.layout.blocks
        ):
            raise ValueError("what was pulled is not what was published")


async def measure_slow_link(
    nats: NatsSettings, settings: ObjectStoreSettings, folder: Path
) -> tuple[dict[str, object], dict[str, Bar]]:
    step = TrainingStep(PARAMETERS, seed=1)
    before, after = (StateInMemory(step.layout, data) for data in step.states())
    signer = Signer.generate()
    port = urlsplit(settings.endpoint_url or "").port or 0
    with limited_link(port, LINK) as limited, tempfile.TemporaryDirectory(dir="/dev/shm") as copy:
        behind = settings.model_copy(update={"endpoint_url": f"http://127.0.0.1:{limited}", "prefix": "slow"})
        async with await Bus.connect(nats, name="benchmark") as bus, ObjectStore(behind) as store:
            pointers = await KeyValue.declare(bus, JobTopology("b", "slow").weights, deadline_s=DEADLINE_S)
            publisher = await WeightPublisher.open(
                store, pointers, job="slow", policy="p", signer=signer, rules=RULES, folder=folder / "scratch",
                threads=2, clock=time.time, deadline_s=DEADLINE_S,
            )  # fmt: skip
            puller = WeightPuller(
                store, "p", Verifier([signer.public_text]), folder=Path(copy), spool=folder / "spool", member="pool",
                threads=2,
            )  # fmt: skip
            await puller.open()
            ends = Ends(publisher, puller)
            # Every transfer measured leads to the same state: in full at first, then as a delta from the other one.
            full = await ends.transfer(1, after)
            ends.check(after)
            note(f"slow link: full {full}")
            deltas: list[Transfer] = []
            for turn in range(ROUNDS):
                await ends.transfer(2 * turn + 2, before)
                deltas.append(await ends.transfer(2 * turn + 3, after))
                note(f"slow link: delta {deltas[-1]}")
            ends.check(after)
            capture, capture_bars = measure_capture(publisher, before)
            await puller.close()
            await publisher.close()
    delta = statistics.median(transfer.seconds for transfer in deltas)
    ideal = deltas[-1].wire_s + ROUND_TRIPS * 2 * LINK.latency_s
    figures: dict[str, object] = {
        "slow_link": {
            "model_bytes": step.layout.data_bytes,
            "mbit_per_s": LINK.bytes_per_s * 8 / 1e6,
            "round_trip_ms": 2 * LINK.latency_s * 1e3,
            "full_bytes": full.bytes,
            "full_s": round(full.seconds, 2),
            "full_publish_s": round(full.publish_s, 2),
            "full_wire_s": round(full.wire_s, 2),
            "delta_bytes": deltas[-1].bytes,
            "delta_s": round(delta, 3),
            "delta_publish_s": round(statistics.median(transfer.publish_s for transfer in deltas), 3),
            "delta_pull_s": round(statistics.median(transfer.pull_s for transfer in deltas), 3),
            "delta_wire_s": round(deltas[-1].wire_s, 3),
            "delta_share_of_wire_limit": round(ideal / delta, 3),
        },
        "capture": capture,
    }
    return figures, {"delta_speedup_over_full": Bar(full.seconds / delta, 10.0), **capture_bars}


def measure_capture(publisher: WeightPublisher, source: StateInMemory) -> tuple[dict[str, float], dict[str, Bar]]:
    """What a trainer waits for, next to copying its weights."""
    snapshot = np.zeros_like(source.data)

    def timed(work: Callable[[], object]) -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    results = interleaved(
        {
            "capture": lambda: timed(lambda: publisher.capture(source)),
            "copy": lambda: timed(lambda: np.copyto(snapshot, source.data)),
        },
        rounds=CAPTURES,
    )
    note(f"capture: {results}")
    seconds = {f"{name}_s": round(statistics.median(values), 4) for name, values in results.items()}
    over = paired_share(results["capture"], results["copy"])
    return seconds, {"capture_over_copy": Bar(over, 6.0, at_most=True)}
