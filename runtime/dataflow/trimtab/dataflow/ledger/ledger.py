"""The books of a job: a pure state machine over arrived headers and recorded decisions.

Headers come from the trajectory stream, records from the ledger's own. A restart replays all headers first, then the
records: a grant names groups that had arrived before it was written, so by then all of them are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from trimtab.dataflow.admission import capacity
from trimtab.dataflow.ledger.groups import Group, Sample, choose, mean_reward
from trimtab.dataflow.ledger.records import (
    PolicyFinished,
    Record,
    StepDurable,
    StepGranted,
    StepTimed,
    TasksIssued,
    TrainerAttempt,
)
from trimtab.fabric.wire.header import TrajectoryHeader


class LedgerError(RuntimeError):
    """The streams contradict each other: going on would train something twice or lose it."""


class Arrival(StrEnum):
    """What a header meant."""

    NEW = "new"
    DUPLICATE = "duplicate"
    COMPLETED = "completed"
    FAILED = "failed"
    NOT_FOR_TRAINING = "not-for-training"


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Of one rank in one step."""

    wait_s: float
    step_s: float


@dataclass
class PolicyBooks:
    """One policy's line of steps."""

    name: str
    arriving: dict[str, Group] = field(default_factory=dict)
    buffered: dict[str, Group] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    """Groups that are granted, dropped or failed: whatever arrives for them again is a duplicate."""
    granted: dict[int, tuple[Group, ...]] = field(default_factory=dict)
    """By step, from the first that is not durable."""
    next_step: int = 0
    durable_steps: int = 0
    trained_steps: int = 0
    """The trainer's version as far as we know: a request for step s says that s steps are trained."""
    accepted_groups: int = 0
    finished_groups: int = 0
    """Groups that have come to their end, well or badly: what is issued and not in here is running."""
    produced_tokens: int = 0
    consumed_tokens: int = 0
    dropped_groups: int = 0
    failed_groups: int = 0
    duplicates: int = 0
    attempt: int = 0
    times: dict[int, dict[int, StepTimes]] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)
    """Mean reward of every granted step."""
    finished: str | None = None


class Ledger:
    """State and the questions about it; every change comes in through `arrived` or `apply`."""

    def __init__(self, policies: Sequence[str], *, group_size: int, batch_size: int, max_staleness: int) -> None:
        self.policies = {name: PolicyBooks(name) for name in policies}
        self.issued = 0
        self._group_size = group_size
        self._batch_size = batch_size
        self._max_staleness = max_staleness

    def arrived(self, sequence: int, trajectory_id: str, header: TrajectoryHeader) -> Arrival:
        books = self.policies.get(header.policy)
        if books is None or header.benchmark is not None:
            return Arrival.NOT_FOR_TRAINING
        if header.group_id in books.settled or header.group_id in books.buffered:
            books.duplicates += 1
            return Arrival.DUPLICATE
        group = books.arriving.setdefault(header.group_id, Group(header.group_id, header.group_size))
        if header.group_index in group.samples:
            books.duplicates += 1
            return Arrival.DUPLICATE
        group.samples[header.group_index] = Sample(sequence, trajectory_id, header)
        if not group.complete:
            return Arrival.NEW
        return self._complete(books, group)

    def _complete(self, books: PolicyBooks, group: Group) -> Arrival:
        del books.arriving[group.group_id]
        books.finished_groups += 1
        books.produced_tokens += group.tokens
        if group.failed:
            books.settled.add(group.group_id)
            books.failed_groups += 1
            return Arrival.FAILED
        books.buffered[group.group_id] = group
        books.accepted_groups += 1
        return Arrival.COMPLETED

    def apply(self, record: Record) -> None:
        if isinstance(record, TasksIssued):
            self.issued = max(self.issued, record.first + record.count)
            return
        books = self.policies.get(record.policy)
        if books is None:
            raise LedgerError(f"the ledger speaks of policy {record.policy!r}, which the job does not have")
        match record:
            case StepGranted():
                self._apply_grant(books, record)
            case StepTimed():
                ranks = books.times.setdefault(record.step, {})
                ranks[record.rank] = StepTimes(wait_s=record.wait_seconds, step_s=record.step_seconds)
                books.trained_steps = max(books.trained_steps, record.step + 1)
            case StepDurable():
                books.durable_steps = max(books.durable_steps, record.step + 1)
                books.trained_steps = max(books.trained_steps, record.step + 1)
                books.granted = {step: groups for step, groups in books.granted.items() if step >= books.durable_steps}
            case TrainerAttempt():
                books.attempt = max(books.attempt, record.attempt)
            case PolicyFinished():
                books.finished = record.reason

    def _apply_grant(self, books: PolicyBooks, record: StepGranted) -> None:
        if record.step != books.next_step:
            raise LedgerError(f"{books.name}: step {record.step} granted where {books.next_step} was due")
        for group_id in (*record.groups, *record.dropped):
            if group_id not in books.buffered:
                raise LedgerError(
                    f"{books.name}: step {record.step} takes group {group_id}, which is not in the buffer"
                )
        books.next_step += 1
        books.granted[record.step] = tuple(books.buffered.pop(group_id) for group_id in record.groups)
        books.rewards.append(mean_reward(books.granted[record.step]))
        books.consumed_tokens += sum(group.tokens for group in books.granted[record.step])
        for group_id in record.dropped:
            del books.buffered[group_id]
        books.settled.update(record.groups, record.dropped)
        books.dropped_groups += len(record.dropped)
        books.accepted_groups -= len(record.dropped)

    def capacity_groups(self) -> int:
        """Groups that may be issued now: every task is one group of every policy, so the tightest policy decides."""
        return min(
            capacity(
                max_staleness=self._max_staleness,
                version=books.trained_steps,
                batch_size=self._batch_size,
                accepted=books.accepted_groups * self._group_size,
                running=(self.issued - books.finished_groups) * self._group_size,
            )
            // self._group_size
            for books in self.policies.values()
        )

    def propose_grant(self, policy: str, *, now: float) -> StepGranted | None:
        """The next step's groups, if there are enough: to be recorded first and applied then."""
        books = self.policies[policy]
        chosen = choose(
            list(books.buffered.values()),
            step=books.next_step,
            max_staleness=self._max_staleness,
            wanted=self._batch_size // self._group_size,
        )
        if chosen is None:
            return None
        groups, stale = chosen
        return StepGranted(
            policy=policy,
            step=books.next_step,
            groups=tuple(group.group_id for group in groups),
            dropped=tuple(group.group_id for group in stale),
            granted_at=now,
        )
