"""The ledger against a model that keeps everything: any order of arrivals, grants and restarts, and never a difference.

Two policies, one of which speaks in two roles, so that each task is one group for the first and two for the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.dataflow.books import BATCH, GROUP, STALENESS, header, ledger
from trimtab.dataflow.ledger.groups import all_samples
from trimtab.dataflow.ledger.ledger import Arrival, Ledger
from trimtab.dataflow.ledger.records import (
    GroupsDropped,
    GroupsSifted,
    PolicyFinished,
    Record,
    ReducedGroup,
    StepDurable,
    StepGranted,
    StepTimed,
    TasksIssued,
    TrainerAttempt,
)
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.fabric.wire.header import TrajectoryHeader

ROLES = {"solver": ("solver",), "judge": ("judge", "critic")}
POLICIES = {policy: len(roles) for policy, roles in ROLES.items()}
policies = st.sampled_from(sorted(POLICIES))


def picture(books: Ledger) -> dict[str, Any]:
    """All that a ledger knows, in a form that compares."""
    return {"issued": books.issued, "newest": books.newest_tasks, "capacity": books.capacity_tasks()} | {
        name: {
            "counts": {key: value for key, value in vars(one).items() if isinstance(value, int | str | None)},
            "arriving": {key: sorted(partial.samples) for key, partial in one.arriving.items()},
            "buffer": [
                (group_id, [sample.header.group_index for sample in one.buffer.group(group_id).samples])
                for group_id in one.buffer.first(len(one.buffer))
            ],
            "unsifted": list(one.unsifted),
            "granted": {
                step: [(sample.sequence, sample.trajectory_id) for sample in all_samples(groups)]
                for step, groups in one.granted.items()
            },
            "rewards": list(one.rewards),
            "settled": [
                (number, role)
                for number in range(books.issued)
                for role in ROLES[name]
                if f"t{number}.{role}" in one.settled
            ],
            "waiting": one.waiting(first_step=0, last_step=one.next_step),
        }
        for name, one in books.policies.items()
    }


@dataclass
class Witnessed:
    """Writes down what a curator would learn."""

    told: list[tuple[str, int | tuple[float, ...]]] = field(default_factory=list)

    def observe(self, outcome: GroupOutcome) -> None:
        self.told.append((f"{outcome.policy}/{outcome.role}/{outcome.prompt_id}", outcome.rewards))

    def stepped(self, policy: str, step: int) -> None:
        self.told.append((policy, step))


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = ledger(policies=POLICIES, sifts=True, witness=Witnessed())
        self.stream: list[TrajectoryHeader] = []
        self.journal: list[Record] = []
        self.waiting: list[tuple[int, str, str, int]] = []
        """Samples asked for and not arrived: task, policy, role, index."""
        self.first: dict[tuple[str, str, int], TrajectoryHeader] = {}
        self.trained: dict[tuple[str, str], int] = {}
        self.dropped: set[tuple[str, str]] = set()
        self.filtered: set[tuple[str, str]] = set()
        self.finished: set[str] = set()

    def write(self, record: Record) -> None:
        self.journal.append(record)
        self.ledger.apply(record)

    def arrive(self, one: TrajectoryHeader) -> Arrival:
        self.stream.append(one)
        return self.ledger.arrived(len(self.stream), f"{one.group_id}.{one.group_index}", one)

    @initialize(turns=st.integers(0, 6))
    def begin(self, turns: int) -> None:
        self.write(TrainerAttempt(policy="solver", attempt=0, world_size=2))
        for _ in range(turns):
            self.busy_turn(lag=0)

    @rule(lag=st.integers(0, 4))
    def busy_turn(self, lag: int) -> None:
        """A good stretch of work, so that the other rules meet a run that is well under way."""
        self.issue(share=1.0)
        for _ in range(len(self.waiting)):
            self.next_sample(0, lag=lag, fails=False)
        for policy in POLICIES:
            self.filters_are_asked(policy, verdicts=[2])
            self.trainer_asks(policy)
            self.step_is_timed(policy, rank=0, wait=1.0)

    @rule(share=st.floats(0.1, 1.0))
    def issue(self, share: float) -> None:
        capacity = self.ledger.capacity_tasks()
        assert capacity == self.modelled_capacity()
        if capacity:
            count = max(1, int(capacity * share))
            first = self.ledger.issued
            self.write(TasksIssued(first=first, count=count))
            self.waiting += [
                (task, policy, role, index)
                for task in range(first, first + count)
                for policy, roles in ROLES.items()
                for role in roles
                for index in range(GROUP)
            ]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), count=st.integers(1, 12), lag=st.integers(0, 4), fails=st.sampled_from([False] * 9 + [True]))
    def samples_arrive(self, data: st.DataObject, count: int, lag: int, fails: bool) -> None:
        for _ in range(min(count, len(self.waiting))):
            self.next_sample(data.draw(st.integers(0, len(self.waiting) - 1)), lag=lag, fails=fails)

    def next_sample(self, position: int, *, lag: int, fails: bool) -> None:
        task, policy, role, index = self.waiting.pop(position)
        version = max(0, self.ledger.policies[policy].trained_steps - lag)
        one = header(task, index, policy=policy, role=role, version=version, error="engine-gone" if fails else None)
        self.first[policy, one.group_id, index] = one
        assert self.arrive(one) in (Arrival.NEW, Arrival.COMPLETED, Arrival.FAILED)

    @precondition(lambda self: self.stream)
    @rule(data=st.data(), newer=st.booleans())
    def sample_arrives_again(self, data: st.DataObject, newer: bool) -> None:
        """The same sample, or another attempt at it with other weights: the first one counts."""
        old = data.draw(st.sampled_from(self.stream))
        if not newer:
            assert self.arrive(old) is Arrival.DUPLICATE
        else:
            again = header(
                int(old.task_id[1:]), old.group_index, policy=old.policy, role=old.role, version=99, reward=0.0
            )
            assert self.arrive(again) is Arrival.DUPLICATE

    @rule(name=st.sampled_from(["nonsense", "t1", "t01.solver", "t2.", "x3.solver"]))
    def stranger_arrives(self, name: str) -> None:
        before = picture(self.ledger)
        assert self.ledger.arrived(1, "x", header(0, 0, group_id=name)) is Arrival.REFUSED
        assert picture(self.ledger) == before

    @rule(policy=policies, verdicts=st.lists(st.integers(0, 2), min_size=1, max_size=5))
    def filters_are_asked(self, policy: str, verdicts: list[int]) -> None:
        """The filters keep 0, 1 or 2 samples of each group that waits for their word."""
        named = list(zip(self.ledger.policies[policy].unsifted, cycle(verdicts), strict=False))
        if named:
            left_out = tuple(group_id for group_id, kept in named if kept == 0)
            self.write(
                GroupsSifted(
                    policy=policy,
                    kept=tuple(group_id for group_id, kept in named if kept == 2),
                    reduced=tuple(ReducedGroup(group_id, (1,)) for group_id, kept in named if kept == 1),
                    left_out=left_out,
                )
            )
            self.filtered |= {(policy, group_id) for group_id in left_out}

    @rule(policy=policies)
    def trainer_asks(self, policy: str) -> None:
        books = self.ledger.policies[policy]
        proposal = self.ledger.propose(policy, now=1.0)
        assert (proposal is not None) == self.ledger.can_decide(policy)
        if proposal is None or policy in self.finished:
            return
        self.write(proposal)
        for group_id in proposal.dropped:
            assert proposal.step - self.oldest(policy, group_id) > STALENESS
            assert (policy, group_id) not in self.trained.keys() | self.dropped
            self.dropped.add((policy, group_id))
        if isinstance(proposal, StepGranted):
            assert len(proposal.groups) * GROUP == BATCH
            for group_id in proposal.groups:
                assert (policy, group_id) not in self.trained.keys() | self.dropped, "a group in two steps"
                assert (policy, group_id) not in self.filtered
                assert 0 <= max(0, proposal.step - self.oldest(policy, group_id)) <= STALENESS
                self.trained[policy, group_id] = proposal.step
            assert books.next_step == proposal.step + 1
        else:
            assert isinstance(proposal, GroupsDropped)

    @rule(policy=policies, rank=st.integers(0, 1), wait=st.floats(0, 10))
    def step_is_timed(self, policy: str, rank: int, wait: float) -> None:
        books = self.ledger.policies[policy]
        step = min(books.trained_steps, books.next_step - 1)
        if step >= 0 and books.wants_time(step, rank=rank):
            self.write(StepTimed(policy=policy, step=step, rank=rank, wait_seconds=wait, step_seconds=10.0, at=1.0))

    @rule(policy=policies)
    def step_is_durable(self, policy: str) -> None:
        books = self.ledger.policies[policy]
        if books.trained_steps > books.durable_steps:
            self.write(StepDurable(policy=policy, step=books.trained_steps - 1))
            assert min(books.granted, default=books.durable_steps) >= books.durable_steps

    @precondition(lambda self: self.ledger.policies["judge"].next_step > 2)
    @rule()
    def judge_finishes(self) -> None:
        if "judge" not in self.finished:
            self.finished.add("judge")
            self.write(PolicyFinished(policy="judge", reason="enough"))

    def recovered(self, *, sifts: bool) -> Ledger:
        """Headers first, then records."""
        recovered = ledger(policies=POLICIES, sifts=sifts, witness=Witnessed())
        recovered.begin_replay()
        for sequence, one in enumerate(self.stream, start=1):
            recovered.arrived(sequence, f"{one.group_id}.{one.group_index}", one)
        for record in self.journal:
            recovered.apply(record)
        recovered.end_replay()
        return recovered

    @rule()
    def restart(self) -> None:
        """What comes out is what was there."""
        recovered = self.recovered(sifts=self.ledger.sifts)
        assert picture(recovered) == picture(self.ledger)
        assert recovered._witness == self.ledger._witness
        self.ledger = recovered

    @rule(sifts=st.booleans())
    def restart_with_another_manifest(self, sifts: bool) -> None:
        """Filters may come and go: what was decided stands, and what was not is up to the manifest of now."""
        self.ledger = self.recovered(sifts=sifts)
        assert sifts or not any(books.unsifted for books in self.ledger.policies.values())

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        for policy, books in self.ledger.policies.items():
            complete, failed = self.ends(policy)
            dropped = sum(1 for owner, _ in self.dropped if owner == policy)
            assert books.finished_groups == complete
            assert books.failed_groups == failed
            if policy not in self.finished:
                filtered = sum(1 for owner, _ in self.filtered if owner == policy)
                assert books.accepted_groups == complete - failed - dropped - filtered
                assert books.dropped_groups == dropped
                assert books.filtered_groups == filtered
                held = len(books.buffer) + len(books.unsifted)
                assert held == complete - failed - dropped - filtered - self.trained_groups(policy)
            else:
                assert len(books.buffer) + len(books.unsifted) == 0

    @invariant()
    def admission_is_bounded(self) -> None:
        for policy, books in self.ledger.policies.items():
            if policy not in self.finished:
                asked = books.accepted_groups + self.ledger.running_groups(policy)
                assert asked * GROUP <= (STALENESS + books.trained_steps + 1) * BATCH

    @invariant()
    def memory_follows_what_is_in_flight(self) -> None:
        for books in self.ledger.policies.values():
            assert books.settled.held() <= self.ledger.issued * books.groups_per_task
            assert len(books.rewards) <= 3

    def ends(self, policy: str) -> tuple[int, int]:
        groups: dict[str, list[TrajectoryHeader]] = {}
        for (owner, group_id, _), one in self.first.items():
            if owner == policy:
                groups.setdefault(group_id, []).append(one)
        complete = [samples for samples in groups.values() if len(samples) == GROUP]
        return len(complete), sum(any(one.error for one in samples) for samples in complete)

    def oldest(self, policy: str, group_id: str) -> int:
        versions = [self.first[policy, group_id, index].oldest_version for index in range(GROUP)]
        assert None not in versions
        return min(version for version in versions if version is not None)

    def trained_groups(self, policy: str) -> int:
        return sum(1 for owner, _ in self.trained if owner == policy)

    def modelled_capacity(self) -> int:
        rooms = []
        for policy, books in self.ledger.policies.items():
            if policy not in self.finished:
                failed = self.ends(policy)[1]
                dropped = sum(1 for owner, _ in self.dropped if owner == policy)
                filtered = sum(1 for owner, _ in self.filtered if owner == policy)
                asked = self.ledger.issued * len(ROLES[policy]) - failed - dropped - filtered
                room = (STALENESS + books.trained_steps + 1) * BATCH - asked * GROUP
                rooms.append(max(0, room) // (GROUP * len(ROLES[policy])))
        return min(rooms)


LedgerMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedger = LedgerMachine.TestCase
