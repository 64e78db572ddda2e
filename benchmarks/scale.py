"""What a step costs when it is dealt to 8 and to 1,024 ranks: real NATS, the real dataflow and 16,384 rows a step,
against one controller that reads, decodes and re-sends every row, and against bare requests of the same sizes.

`python -m benchmarks.scale` starts nats-server, the dataflow pod, and a process each of workers, ranks and controller.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.report import Bar, logs_to_stderr, note, paired_share, report
from benchmarks.trajectories import controller, many_ranks, workers
from benchmarks.trajectories.broker import MonitoredNats
from benchmarks.trajectories.controller import Controller
from benchmarks.trajectories.many_ranks import ManyRanks
from benchmarks.trajectories.payloads import POLICY, tokens_for
from benchmarks.trajectories.pod import DataflowPod, dataflow_pod
from benchmarks.trajectories.queue_cost import come_to_rest
from benchmarks.trajectories.spawned import Spawned, spawned
from benchmarks.trajectories.workers import Workers

RANKS = (8, 64, 256, 1024)
ROWS = 16_384
PAYLOAD_BYTES = 2 << 10
ROUNDS = 3
_DEADLINE_S = 300.0

WorkerProcess = Spawned[workers.Prepare | workers.Publish, workers.Prepared | workers.Published]
RankProcess = Spawned[many_ranks.Question, many_ranks.Told]
ControllerProcess = Spawned[controller.Deal, None]


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """One step of so many ranks."""

    ranks: int
    lease_s: float
    """Until all have their leases."""
    service_cpu_s: float
    """Of the dataflow, for the leases and the acknowledgement."""
    rows_s: float
    """From leases to the rows, read by sequence."""
    controller_s: float
    """Until all have their rows from the controller."""
    controller_cpu_s: float
    requests_s: float
    """Of bare requests with answers as large as the leases."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    costs: Mapping[int, Sequence[StepCost]]
    """By the number of ranks."""
    intake_cpu_s: Sequence[float]
    """Of the dataflow, to take in the rows of a step."""


class Scale:
    """The processes of one run."""

    def __init__(
        self, pod: DataflowPod, *, rows: int, rank_process: RankProcess, controller_process: ControllerProcess
    ) -> None:
        self._pod = pod
        self._rows = rows
        self._ranks = rank_process
        self._controller = controller_process

    def measure(self, *, ranks: int, step: int, attempt: int, controller_first: bool) -> StepCost:
        """The rows of the step have arrived. Who reads them first alternates, as the second finds them warm."""
        of = many_ranks.Step(topology=self._pod.topology, step=step, ranks=ranks, attempt=attempt)
        deal = controller.Deal(
            topology=self._pod.topology, first_sequence=1 + step * self._rows, count=self._rows, ranks=ranks
        )
        self._controller.ask(deal, deadline_s=_DEADLINE_S)
        come_to_rest(self._pod)
        before = self._pod.usage()
        leased = self._asked(many_ranks.Lease(of=of), rows=self._rows)
        come_to_rest(self._pod)
        lease_cpu_s = self._pod.usage().since(before).cpu_s
        requests = self._asked(many_ranks.Echo(of=of), rows=0)

        def read() -> float:
            return self._asked(many_ranks.Read(of=of), rows=self._rows).took_s

        def fetch() -> tuple[float, float]:
            cpu_s = _cpu_s(self._controller.pid)
            told = self._asked(many_ranks.Fetch(of=of), rows=self._rows)
            return told.took_s, _cpu_s(self._controller.pid) - cpu_s

        if controller_first:
            (controller_s, controller_cpu_s), rows_s = fetch(), read()
        else:
            rows_s, (controller_s, controller_cpu_s) = read(), fetch()
        before = self._pod.usage()
        self._asked(many_ranks.Acknowledge(of=of), rows=0)
        come_to_rest(self._pod)
        cost = StepCost(
            ranks=ranks,
            lease_s=leased.took_s,
            service_cpu_s=lease_cpu_s + self._pod.usage().since(before).cpu_s,
            rows_s=rows_s,
            controller_s=controller_s,
            controller_cpu_s=controller_cpu_s,
            requests_s=requests.took_s,
        )
        note(f"step {step}: {cost}")
        return cost

    def _asked(self, question: many_ranks.Question, *, rows: int) -> many_ranks.Told:
        told = self._ranks.ask(question, deadline_s=_DEADLINE_S)
        if (told.rows, told.distinct) != (rows, rows):
            raise RuntimeError(f"{question}: {told.rows} rows came to ranks, {told.distinct} different ones of {rows}")
        return told


def bars(costs: Mapping[int, Sequence[StepCost]]) -> dict[str, Bar]:
    few, many = costs[64], costs[1024]
    return {
        "lease_time_1024_over_64": Bar(
            paired_share([cost.lease_s for cost in many], [cost.lease_s for cost in few]), 2.0, at_most=True
        ),
        "service_cpu_s_a_step_1024": Bar(_median(many, lambda cost: cost.service_cpu_s), 0.5, at_most=True),
        "controller_cpu_over_service_cpu_1024": Bar(
            paired_share([cost.controller_cpu_s for cost in many], [cost.service_cpu_s for cost in many]), 3.0
        ),
    }


def figures(costs: Sequence[StepCost]) -> dict[str, float]:
    shown: dict[str, Callable[[StepCost], float]] = {
        "lease_s": lambda cost: cost.lease_s,
        "bare_requests_s": lambda cost: cost.requests_s,
        "service_cpu_s": lambda cost: cost.service_cpu_s,
        "rows_s": lambda cost: cost.rows_s,
        "controller_s": lambda cost: cost.controller_s,
        "controller_cpu_s": lambda cost: cost.controller_cpu_s,
    }
    return {name: round(_median(costs, value), 3) for name, value in shown.items()}


def measure(*, rank_counts: Sequence[int], rows: int, rounds: int) -> Measured:
    tokens = tokens_for(PAYLOAD_BYTES)
    costs: dict[int, list[StepCost]] = {ranks: [] for ranks in rank_counts}
    intake_cpu_s: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        MonitoredNats(Path(folder) / "nats") as server,
        spawned("workers", Workers().serve, server.settings, connections=1) as worker_process,
        spawned("controller", Controller().serve, server.settings, connections=1) as controller_process,
        spawned("ranks", ManyRanks().serve, server.settings, connections=max(rank_counts)) as rank_process,
        dataflow_pod("scale", batch_size=rows, folder=Path(folder), server=server) as pod,
    ):
        scale = Scale(pod, rows=rows, rank_process=rank_process, controller_process=controller_process)
        for round_ in range(rounds):
            for place, ranks in enumerate(rank_counts if round_ % 2 == 0 else reversed(rank_counts)):
                step = round_ * len(rank_counts) + place
                come_to_rest(pod)
                before = pod.usage()
                _publish(worker_process, pod, step=step, rows=rows, tokens=tokens)
                come_to_rest(pod)
                intake_cpu_s.append(pod.usage().since(before).cpu_s)
                cost = scale.measure(ranks=ranks, step=step, attempt=step, controller_first=bool(round_ % 2))
                costs[ranks].append(cost)
    return Measured(costs=costs, intake_cpu_s=intake_cpu_s)


def main() -> None:
    logs_to_stderr()
    # Every rank has a connection: more files than many shells allow at first.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    measured = measure(rank_counts=RANKS, rows=ROWS, rounds=ROUNDS)
    report(
        "scale",
        {
            "cores": os.cpu_count(),
            "rows_a_step": ROWS,
            "row_bytes": PAYLOAD_BYTES,
            "by_ranks": {ranks: figures(of) for ranks, of in measured.costs.items()},
            "service_cpu_s_to_take_in_a_step": round(statistics.median(measured.intake_cpu_s), 3),
        },
        bars(measured.costs),
    )


def _publish(worker_process: WorkerProcess, pod: DataflowPod, *, step: int, rows: int, tokens: int) -> None:
    worker_process.ask(
        workers.Prepare(job=pod.job, tokens=tokens, batch_size=rows, first=step * rows, count=rows),
        deadline_s=_DEADLINE_S,
    )
    subject = pod.topology.trajectory_subject(POLICY)
    worker_process.ask(workers.Publish(subject=subject, first=0, count=rows), deadline_s=_DEADLINE_S)


def _median(costs: Sequence[StepCost], value: Callable[[StepCost], float]) -> float:
    return statistics.median(map(value, costs))


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
