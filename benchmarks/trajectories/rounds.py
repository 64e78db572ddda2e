"""From publish to the batch in the rank, for one size of payload, against raw JetStream and TransferQueue in turns."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.report import interleaved, note
from benchmarks.trajectories import ranks, workers
from benchmarks.trajectories.broker import MonitoredNats
from benchmarks.trajectories.payloads import GROUP_SIZE, POLICY, tokens_for
from benchmarks.trajectories.pod import DataflowPod, Stages, Usage, dataflow_pod
from benchmarks.trajectories.spawned import Spawned
from benchmarks.trajectories.transferqueue import PeerFailed, PeerRound, TransferQueue
from trimtab.fabric.settings import NatsSettings

ROUNDS = 3
_WARM_STEPS = 2
_PACED_STEPS = 6
_PACED_LOAD = 0.5
_DEADLINE_S = 120.0
_TOKEN_BYTES = 8
"""An id and a logprob."""
_PEER_GROUPS_IN_FLIGHT = 32
_PEER_BATCHES_IN_FLIGHT = 8

PEER_GROUPS, PEER_BATCHES = "transferqueue_groups", "transferqueue_batches"

WorkerProcess = Spawned[workers.Prepare | workers.Publish, workers.Prepared | workers.Published]
RankProcess = Spawned[ranks.Train | ranks.Lease | ranks.Open | ranks.Pull | ranks.Drop, ranks.Received]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What all measurements share."""

    server: MonitoredNats
    folder: Path
    workers: WorkerProcess
    ranks: RankProcess
    dataflow: NatsSettings | None = None
    """What the service dials with, if not with the server's own user."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """`steps` are those of one round: enough that the first batch, which cannot be read before it is full, weighs
    little."""

    name: str
    payload_bytes: int
    batch_size: int
    steps: int

    @property
    def round_rows(self) -> int:
        return self.batch_size * self.steps


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A stretch of rows on their way: when each was published, and when its batch was in the rank."""

    published: npt.NDArray[np.float64]
    received: npt.NDArray[np.float64]

    @property
    def rows_per_second(self) -> float:
        return len(self.published) / float(self.received.max() - self.published[0])

    def latency_ms(self, *percentiles: int) -> list[float]:
        return [round(float(ms), 2) for ms in np.percentile((self.received - self.published) * 1e3, percentiles)]

    def after_last_ms(self, batch_size: int) -> float:
        """From the publication of a batch's last row to the batch, at the median: without the time it takes to fill."""
        late = self.received.reshape(-1, batch_size).max(axis=1) - self.published.reshape(-1, batch_size).max(axis=1)
        return round(float(np.median(late)) * 1e3, 2)


@dataclass(frozen=True, kw_only=True)
class SizeResult:
    """Rates are rows per second, by round; `costs` are what each of our rounds took of the service."""

    size: Size
    payload_bytes: float
    rates: Mapping[str, Sequence[float]]
    peer_failures: Mapping[str, str]
    costs: Sequence[Usage]
    paced: Passage

    @property
    def service_bytes_per_row(self) -> float:
        return sum(cost.traffic.size for cost in self.costs) / self._rows

    @property
    def service_share(self) -> float:
        """Bytes through the service, of the payload."""
        return self.service_bytes_per_row / self.payload_bytes

    @property
    def _rows(self) -> int:
        return len(self.costs) * self.size.round_rows

    def figures(self) -> dict[str, object]:
        p50, p99 = self.paced.latency_ms(50, 99)
        medians = {name: statistics.median(rates) for name, rates in self.rates.items()}
        return {
            "payload_bytes": round(self.payload_bytes),
            "batch_size": self.size.batch_size,
            "rows_per_s": {name: round(rate) for name, rate in medians.items()},
            "mb_per_s": {name: round(rate * self.payload_bytes / 1e6, 1) for name, rate in medians.items()},
            "half_load_latency_ms": {
                "p50": p50,
                "p99": p99,
                "after_last_row": self.paced.after_last_ms(self.size.batch_size),
            },
            "service_cpu_s_per_100k": round(sum(cost.cpu_s for cost in self.costs) / self._rows * 1e5, 2),
            "service_bytes_per_row": round(self.service_bytes_per_row),
            "service_messages_per_row": round(sum(cost.traffic.count for cost in self.costs) / self._rows, 2),
            **({"transferqueue_failed": dict(self.peer_failures)} if self.peer_failures else {}),
        }


def measure_size(scene: Scene, size: Size, peer: TransferQueue) -> SizeResult:
    """Everything there is to say about one size."""
    costs: list[Usage] = []
    failures: dict[str, str] = {}
    with opened_job(scene, size, name=f"size-{size.payload_bytes}") as (pod, payload_bytes):
        contenders = {
            "trimtab": our_rounds(scene, pod, size, costs),
            "raw_jetstream": raw_rounds(scene, size, decoded=True),
        }
        contenders["raw_jetstream_bytes"] = raw_rounds(scene, size, decoded=False)
        contenders |= peer_rounds(peer, size, failures)
        rates = interleaved(contenders, rounds=ROUNDS)
        load = statistics.median(rates["trimtab"]) * _PACED_LOAD
        paced = pass_through(scene, pod, _paced_steps(size), per_second=load)
    result = SizeResult(
        size=size,
        payload_bytes=payload_bytes,
        rates={name: rate for name, rate in rates.items() if name not in failures},
        peer_failures=failures,
        costs=costs,
        paced=paced,
    )
    note(f"{size.name}: {result.figures()}")
    return result


def measure_ranks(scene: Scene, size: Size, *, name: str) -> float:
    """Our rate alone, for another number of ranks."""
    with opened_job(scene, size, name=name) as (pod, _):
        play = our_rounds(scene, pod, size, [])
        rate = statistics.median(play() for _ in range(ROUNDS))
    note(f"{name}, {size.name}: {rate:.0f} rows/s")
    return rate


@contextmanager
def opened_job(
    scene: Scene,
    size: Size,
    *,
    name: str,
    stages: Stages = (),
    warm: Callable[[DataflowPod, range], object] | None = None,
) -> Iterator[tuple[DataflowPod, float]]:
    """A job that has done its first steps, with rows ready for all that follow, and the mean size of a payload. `warm`
    does them where passing rows through is not enough.
    """
    count = _paced_steps(size).stop * size.batch_size
    prepared = scene.workers.ask(
        workers.Prepare(job=name, tokens=tokens_for(size.payload_bytes), batch_size=size.batch_size, count=count),
        deadline_s=_DEADLINE_S,
    )
    assert isinstance(prepared, workers.Prepared)
    with dataflow_pod(
        name,
        batch_size=size.batch_size,
        folder=scene.folder,
        server=scene.server,
        nats=scene.dataflow,
        stages=stages,
    ) as pod:
        if warm is None:
            pass_through(scene, pod, range(_WARM_STEPS))
        else:
            warm(pod, range(_WARM_STEPS))
        yield pod, prepared.payload_bytes / count


def _paced_steps(size: Size) -> range:
    """After the first ones and those of the rounds."""
    start = _WARM_STEPS + ROUNDS * size.steps
    return range(start, start + _PACED_STEPS)


def pass_through(scene: Scene, pod: DataflowPod, steps: range, *, per_second: float | None = None) -> Passage:
    """Publish the rows of these steps while ranks wait for them."""
    batch = pod.batch_size
    rows = range(steps.start * batch, steps.stop * batch)
    scene.ranks.tell(ranks.Train(topology=pod.topology, steps=steps, row_numbers=rows))
    published = scene.workers.ask(
        workers.Publish(
            subject=pod.topology.trajectory_subject(POLICY), first=rows.start, count=len(rows), per_second=per_second
        ),
        deadline_s=_DEADLINE_S,
    )
    assert isinstance(published, workers.Published)
    return Passage(published=published.at, received=scene.ranks.heard(deadline_s=_DEADLINE_S).at)


def our_rounds(
    scene: Scene,
    pod: DataflowPod,
    size: Size,
    costs: list[Usage],
    *,
    passes: Callable[[Scene, DataflowPod, range], Passage] | None = None,
) -> Callable[[], float]:
    starts = iter(range(_WARM_STEPS, _WARM_STEPS + ROUNDS * size.steps, size.steps))

    def play() -> float:
        start = next(starts)
        before = pod.usage()
        passage = (passes or pass_through)(scene, pod, range(start, start + size.steps))
        costs.append(pod.usage().since(before))
        return passage.rows_per_second

    return play


def raw_rounds(scene: Scene, size: Size, *, decoded: bool, replicas: int = 1) -> Callable[[], float]:
    """The same frames from the same publisher, in a stream of its own each time."""

    def play() -> float:
        stream = f"raw-{uuid.uuid4().hex}"
        scene.ranks.ask(ranks.Open(stream=stream, replicas=replicas), deadline_s=_DEADLINE_S)
        scene.ranks.tell(ranks.Pull(stream=stream, count=size.round_rows, decoded=decoded))
        published = scene.workers.ask(
            workers.Publish(subject=stream, first=0, count=size.round_rows), deadline_s=_DEADLINE_S
        )
        assert isinstance(published, workers.Published)
        ended = scene.ranks.heard(deadline_s=_DEADLINE_S).ended
        scene.ranks.ask(ranks.Drop(stream=stream), deadline_s=_DEADLINE_S)
        return size.round_rows / (ended - float(published.at[0]))

    return play


def peer_rounds(
    peer: TransferQueue, size: Size, failures: dict[str, str], *, staged: bool = False
) -> dict[str, Callable[[], float]]:
    """Puts of a group, which is what a rollout worker has at a time, and of a whole batch, which no worker has.

    A round of each comes first and does not count: its buffers grow in it, as ours did in our first steps.
    """

    def rounds(name: str, *, put_rows: int, puts_in_flight: int) -> Callable[[], float]:
        question = PeerRound(
            # Its users put arrays as they are, so it gets those of the same trajectories.
            row_bytes=tokens_for(size.payload_bytes) * _TOKEN_BYTES,
            rows=size.round_rows,
            put_rows=put_rows,
            puts_in_flight=puts_in_flight,
            batch_rows=size.batch_size,
            stage_rows=put_rows if staged else 0,
        )

        def play() -> float:
            try:
                return peer.rows_per_second(question)
            except PeerFailed as failure:
                note(f"{size.name}, {name}: {failure}")
                failures[name] = str(failure)
                return 0.0

        play()
        return play

    return {
        PEER_GROUPS: rounds(PEER_GROUPS, put_rows=GROUP_SIZE, puts_in_flight=_PEER_GROUPS_IN_FLIGHT),
        PEER_BATCHES: rounds(PEER_BATCHES, put_rows=size.batch_size, puts_in_flight=_PEER_BATCHES_IN_FLIGHT),
    }
