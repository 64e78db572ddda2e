"""Headers and ledgers for tests of the books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trimtab.api.stage import Stage
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.groups import Allotment, Group, Sample
from trimtab.dataflow.ledger.ledger import Ledger, Witness
from trimtab.dataflow.ledger.records import TasksIssued
from trimtab.dataflow.selection.contract import Selection
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.fabric.wire.header import TrajectoryHeader
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.trajectory import Finish, TurnReward

GROUP = 2
BATCH = 4
STALENESS = 2
WINDOW = 3


def header(
    task: int,
    index: int,
    *,
    policy: str = "solver",
    role: str | None = None,
    version: int | None = 0,
    reward: float = 1.0,
    error: str | None = None,
    group_size: int = GROUP,
    group_id: str | None = None,
    tokens: int = 3,
    part: int = 0,
    parts: int = 1,
    run: str = "0",
    reward_parts: dict[str, float] | None = None,
    label: str = "",
    prompt: str | None = None,
    turn_rewards: tuple[TurnReward, ...] = (),
) -> TrajectoryHeader:
    scored = error is None and parts > 0
    trained = tokens if scored and version is not None else 0
    return TrajectoryHeader(
        header_version=1,
        job="job",
        policy=policy,
        role=role or policy,
        task_id=f"t{task}",
        prompt_id=prompt or f"train-{task}",
        group_id=group_id or f"t{task}.{role or policy}",
        group_index=index,
        group_size=group_size,
        part=part,
        parts=parts,
        purpose=Purpose.TRAIN,
        benchmark=None,
        reward=reward if scored else None,
        finish=Finish.STOP if scored else None,
        error=error,
        retryable=False,
        prompt_tokens=5,
        response_tokens=trained,
        trained_tokens=trained,
        oldest_version=version if trained else None,
        newest_version=version if trained else None,
        turns=1,
        worker="worker",
        pool="pool",
        engine="builtin",
        started_at=1.0,
        finished_at=2.0,
        run=run,
        label=label,
        turn_rewards=turn_rewards,
        reward_parts=reward_parts or {},
    )


def sample(
    task: int, index: int, *, tokens: int = 3, reward: float = 1.0, version: int = 0, part: int = 0, parts: int = 1
) -> Sample:
    own = header(task, index, tokens=tokens, reward=reward, version=version, group_size=64, part=part, parts=parts)
    made = Sample.of(1 + (task * 64 + index) * parts + part, f"t{task}.solver.{index}.{part}", own)
    assert made is not None
    return made


def group(task: int, samples: list[Sample], *, policy: str = "solver") -> Group:
    return Group(
        group_id=f"t{task}.{policy}",
        policy=policy,
        role=policy,
        prompt_id=f"train-{task}",
        samples=tuple(samples),
        episodes=len({one.index for one in samples}),
        oldest_version=min(one.oldest_version for one in samples),
        first_sequence=min(one.sequence for one in samples),
    )


def allotments(groups: list[Group]) -> list[Allotment]:
    return [Allotment(one, 0) for one in groups]


def ledger(
    *,
    policies: dict[str, int] | None = None,
    max_staleness: int = STALENESS,
    has_filters: bool = False,
    witness: Witness | None = None,
    selection: Selection | None = None,
    batch_size: int = BATCH,
    batch_sizes: Mapping[str, int] | None = None,
    stages: Sequence[Stage] = (),
) -> Ledger:
    policies = policies or {"solver": 1}
    return Ledger(
        policies,
        selection=selection or Fresh({policy: {policy: 1.0} for policy in policies}, seed=0),
        group_size=GROUP,
        batch_sizes=batch_sizes or dict.fromkeys(policies, batch_size),
        max_staleness=max_staleness,
        window_steps=WINDOW,
        has_filters=has_filters,
        witness=witness,
        stages=stages,
    )


class Feed:
    """Gives a ledger tasks and their samples, with sequences as a stream would number them."""

    def __init__(self, books: Ledger) -> None:
        self.ledger = books
        self.sequence = 0

    def issue(self, count: int) -> None:
        self.ledger.apply(TasksIssued(first=self.ledger.issued, count=count))

    def arrive(self, one: TrajectoryHeader) -> Arrival:
        self.sequence += 1
        return self.ledger.arrived(self.sequence, f"{one.group_id}.{one.group_index}.{one.part}", one)

    def complete(self, task: int, *, version: int = 0, reward: float = 1.0, policy: str = "solver") -> Arrival:
        arrivals = [
            self.arrive(header(task, index, version=version, reward=reward, policy=policy)) for index in range(GROUP)
        ]
        return arrivals[-1]
