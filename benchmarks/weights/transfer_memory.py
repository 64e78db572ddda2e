"""How much memory a transfer takes on either side besides the model itself, in processes that do nothing else.

Counted is what the kernel cannot drop: anonymous and shared memory. Pages of files it can.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from benchmarks.report import Bar, logs_to_stderr, note
from benchmarks.weights.slow_link import DEADLINE_S, RULES
from benchmarks.weights.transfer_states import TrainingStep
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.weights.baseline import SafetensorsFile
from trimtab.weights.codec.blocks import decode_block, encode_change, encode_whole
from trimtab.weights.codec.change import find_change
from trimtab.weights.layout import ELEMENT_TYPES
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.puller import WeightPuller

PARAMETERS = 1 << 29
THREADS = 2
_SAMPLE_EVERY_S = 0.003
_STATUS = Path("/proc/self/status")


class PeakMemory:
    """Watches this process while it is entered. `shared_bytes` of shared memory are not counted."""

    def __init__(self, *, shared_bytes: int = 0) -> None:
        self._shared_bytes = shared_bytes
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self.peak = self.now()

    def now(self) -> int:
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        anonymous, shared = (int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
        return anonymous + max(0, shared - self._shared_bytes)

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_EVERY_S):
            self.peak = max(self.peak, self.now())

    def __enter__(self) -> Self:
        self._watching.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._watching.join()


@dataclass(frozen=True)
class Place:
    """Where both processes find everything."""

    nats: NatsSettings
    store: ObjectStoreSettings
    seed_text: str
    folder: Path
    copy: Path
    states: tuple[Path, Path]
    model_bytes: int


def _publisher(place: Place, orders: Connection) -> None:
    asyncio.run(_publish(place, orders))


async def _publish(place: Place, orders: Connection) -> None:
    logs_to_stderr()
    warm_up()
    async with await Bus.connect(place.nats, name="publisher") as bus, ObjectStore(place.store) as store:
        publisher = await WeightPublisher.open(
            store, await KeyValue.declare(bus, JobTopology("b", "memory").weights, deadline_s=DEADLINE_S),
            job="memory", policy="p", signer=Signer(place.seed_text), rules=RULES, folder=place.folder / "scratch",
            threads=THREADS, clock=time.time, deadline_s=DEADLINE_S,
        )  # fmt: skip
        without = PeakMemory().now() + place.model_bytes
        for version, path in enumerate(place.states):
            orders.recv()
            with PeakMemory() as memory:
                captured = publisher.capture(SafetensorsFile(path))
                await publisher.publish(version, captured, deadline_s=DEADLINE_S)
            orders.send(memory.peak - without)
        await publisher.close()


def _puller(place: Place, orders: Connection) -> None:
    asyncio.run(_pull(place, orders))


async def _pull(place: Place, orders: Connection) -> None:
    logs_to_stderr()
    warm_up()
    async with ObjectStore(place.store) as store:
        puller = WeightPuller(
            store, "p", Verifier([Signer(place.seed_text).public_text]), folder=place.copy,
            spool=place.folder / "spool", member="pool", threads=THREADS,
        )  # fmt: skip
        await puller.open()
        without = PeakMemory().now()
        for _ in place.states:
            orders.recv()
            with PeakMemory(shared_bytes=place.model_bytes) as memory:
                await puller.pull(deadline_s=DEADLINE_S)
            orders.send(memory.peak - without)
        await puller.close()


def warm_up() -> None:
    """Code takes memory too, once, however large the model is."""
    element = ELEMENT_TYPES["BF16"]
    before, after = (state[: 1 << 20] for state in TrainingStep(1 << 24, seed=0).states())
    decoded = np.empty_like(before)
    change = find_change(before, after, width=element.width)
    if change is None:
        raise ValueError("the step changes nothing")
    for encoded in (encode_change(before, change, element), encode_whole(after, element)):
        decode_block(encoded.mode, before, encoded.payload, element, decoded)


@contextmanager
def _process(target: Callable[[Place, Connection], None], place: Place) -> Iterator[Callable[[], int]]:
    """Yields what makes it take its next turn and returns what it answers."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(place, theirs), daemon=True)
    process.start()
    theirs.close()

    def turn() -> int:
        ours.send(None)
        if not ours.poll(DEADLINE_S):
            raise TimeoutError("a process of the memory measurement does not answer")
        answer = ours.recv()
        assert isinstance(answer, int)
        return answer

    try:
        yield turn
        process.join(DEADLINE_S)
    finally:
        process.kill()


def measure_memory(
    nats: NatsSettings, settings: ObjectStoreSettings, folder: Path
) -> tuple[dict[str, object], dict[str, Bar]]:
    step = TrainingStep(PARAMETERS, seed=2)
    model = step.layout.data_bytes
    with tempfile.TemporaryDirectory(dir="/dev/shm") as copy:
        place = Place(
            nats, settings.model_copy(update={"prefix": "memory"}), Signer.generate().reveal_seed(), folder, Path(copy),
            step.write(folder), model,
        )  # fmt: skip
        with _process(_publisher, place) as publish, _process(_puller, place) as pull:
            anchor = {"publisher": publish(), "puller": pull()}
            delta = {"publisher": publish(), "puller": pull()}
    note(f"memory besides the model: anchor {anchor}, delta {delta}")
    shares = {f"{side}_peak_share": Bar(peak / model, 0.15, at_most=True) for side, peak in delta.items()}
    figures = {
        "model_bytes": model,
        **{f"{side}_delta_mib": peak >> 20 for side, peak in delta.items()},
        **{f"{side}_anchor_mib": peak >> 20 for side, peak in anchor.items()},
    }
    return {"memory": figures}, shares
