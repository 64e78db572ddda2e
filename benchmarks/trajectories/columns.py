"""From publish to the row with its column in the rank, and TransferQueue with the same rows and columns in turns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.report import interleaved, note
from benchmarks.trajectories.payloads import GROUP_SIZE, POLICY
from benchmarks.trajectories.pod import DataflowPod, Usage
from benchmarks.trajectories.rounds import (
    ROUNDS,
    Passage,
    Scene,
    Size,
    opened_job,
    our_rounds,
    pass_through,
    peer_rounds,
    raw_rounds,
)
from benchmarks.trajectories.spawned import Spawned
from benchmarks.trajectories.stage_side import STAGE, Compute
from benchmarks.trajectories.transferqueue import TransferQueue

_DEADLINE_S = 120.0
StageProcess = Spawned[Compute, float]
STAGES = ({"name": STAGE, "computes": "Logprobs", "policy": POLICY},)


@dataclass(frozen=True, kw_only=True)
class ColumnResult:
    """Rates are rows per second, by round."""

    size: Size
    rates: Mapping[str, Sequence[float]]
    peer_failures: Mapping[str, str]
    costs: Sequence[Usage]

    def figures(self) -> dict[str, object]:
        rows = len(self.costs) * self.size.round_rows
        return {
            "batch_size": self.size.batch_size,
            "rows_per_s": {name: round(statistics.median(rates)) for name, rates in self.rates.items()},
            "service_cpu_s_per_100k": round(sum(cost.cpu_s for cost in self.costs) / rows * 1e5, 2),
            "service_bytes_per_row": round(sum(cost.traffic.size for cost in self.costs) / rows),
            **({"transferqueue_failed": dict(self.peer_failures)} if self.peer_failures else {}),
        }


def measure_columns(scene: Scene, stage: StageProcess, size: Size, peer: TransferQueue) -> ColumnResult:
    costs: list[Usage] = []
    failures: dict[str, str] = {}

    def with_columns(scene: Scene, pod: DataflowPod, steps: range) -> Passage:
        stage.tell(Compute(topology=pod.topology, groups=len(steps) * pod.batch_size // GROUP_SIZE))
        passage = pass_through(scene, pod, steps)
        stage.heard(deadline_s=_DEADLINE_S)
        return passage

    with opened_job(
        scene,
        size,
        name=f"columns-{size.payload_bytes}",
        stages=STAGES,
        warm=lambda pod, steps: with_columns(scene, pod, steps),
    ) as (pod, _):
        contenders = {
            "trimtab": our_rounds(scene, pod, size, costs, passes=with_columns),
            # What the stream itself can do with the rows alone, before anybody adds to them.
            "raw_jetstream_rows_alone": raw_rounds(scene, size, decoded=True),
        }
        contenders |= peer_rounds(peer, size, failures, staged=True)
        rates = interleaved(contenders, rounds=ROUNDS)
    result = ColumnResult(
        size=size,
        rates={name: rate for name, rate in rates.items() if name not in failures},
        peer_failures=failures,
        costs=costs,
    )
    note(f"columns, {size.name}: {result.figures()}")
    return result
