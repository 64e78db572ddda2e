"""The books of a job: a pure state machine over arrived headers and recorded decisions.

Headers come from the trajectory stream, records from the ledger's own. A restart replays all headers first, then the
records: a grant names groups that had arrived before it was written, so by then all of them are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from trimtab.dataflow.admission import capacity
from trimtab.dataflow.ledger.books import PolicyBooks
from trimtab.dataflow.ledger.groups import Group, PartialGroup, Sample
from trimtab.dataflow.ledger.records import (
    GroupsDropped,
    GroupsSifted,
    PolicyFinished,
    Record,
    StepDurable,
    StepGranted,
    StepTimed,
    StepTrained,
    TasksIssued,
    TrainerAttempt,
)
from trimtab.dataflow.ledger.task_ids import parse_group_id, task_id
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.fabric.wire.header import TrajectoryHeader


class LedgerError(RuntimeError):
    """The streams contradict each other: going on would train something twice or lose it."""


class Witness(Protocol):
    """Learns how groups end, in the order of the records: a restart tells it the same again. Curators are witnesses."""

    def observe(self, outcome: GroupOutcome) -> None: ...

    def stepped(self, policy: str, step: int) -> None: ...


class Arrival(StrEnum):
    """What a header meant."""

    NEW = "new"
    DUPLICATE = "duplicate"
    COMPLETED = "completed"
    FAILED = "failed"
    NOT_FOR_TRAINING = "not-for-training"
    REFUSED = "refused"
    """No task of this job can have led to it."""


class Ledger:
    """State and the questions about it; every change comes in through `arrived` or `apply`."""

    def __init__(
        self,
        groups_per_task: Mapping[str, int],
        *,
        group_size: int,
        batch_size: int,
        max_staleness: int,
        window_steps: int,
        sifts: bool = False,
        witness: Witness | None = None,
    ) -> None:
        """`groups_per_task` has every policy with the number of its roles: each task gives a group for each role. With
        `sifts`, groups wait for the word of the filters before they count as buffered.
        """
        self.policies = {
            name: PolicyBooks(name, groups_per_task=count, window_steps=window_steps)
            for name, count in groups_per_task.items()
        }
        self.issued = 0
        self.next_position = 0
        """Where the order of prompts goes on."""
        self.newest_positions: Sequence[int] = ()
        """Of the prompts of the newest tasks."""
        self.newest_tasks = range(0)
        """Those of the newest record: all earlier ones were on the queue before it was written."""
        self.groups_per_step = batch_size // group_size
        self._group_size = group_size
        self._batch_size = batch_size
        self._max_staleness = max_staleness
        self.sifts = sifts
        self._holds = sifts
        self._witness = witness

    def begin_replay(self) -> None:
        """From here on the records tell what became of every group, whether or not there are filters now."""
        self._holds = True

    def end_replay(self) -> None:
        self._holds = self.sifts
        if not self.sifts:
            for books in self.policies.values():
                books.surface(tuple(books.unsifted))

    def arrived(self, sequence: int, trajectory_id: str, header: TrajectoryHeader) -> Arrival:
        books = self.policies.get(header.policy)
        if books is None or header.benchmark is not None:
            return Arrival.NOT_FOR_TRAINING
        place = parse_group_id(header.group_id)
        if (
            place is None
            or header.task_id != task_id(place[0])
            or header.group_size != self._group_size
            or header.parts != 1
        ):
            return Arrival.REFUSED
        if header.group_id in books.settled or header.group_id in books.buffer or header.group_id in books.unsifted:
            books.duplicates += 1
            return Arrival.DUPLICATE
        partial = books.arriving.setdefault(header.group_id, PartialGroup(self._group_size))
        if header.group_index in partial.samples:
            books.duplicates += 1
            return Arrival.DUPLICATE
        partial.samples[header.group_index] = Sample(sequence, trajectory_id, header)
        if not partial.complete:
            return Arrival.NEW
        return self._complete(books, header.group_id)

    def _complete(self, books: PolicyBooks, group_id: str) -> Arrival:
        partial = books.arriving.pop(group_id)
        books.finished_groups += 1
        books.produced_tokens += partial.tokens
        if not partial.trainable:
            books.settled.add((group_id,))
            books.failed_groups += 1
            return Arrival.FAILED
        books.accepted_groups += 1
        books.unsifted[group_id] = Group.of(group_id, partial)
        if books.finished is not None:
            books.surface((group_id,))
            books.drop((group_id,))
        elif not self._holds:
            books.surface((group_id,))
        return Arrival.COMPLETED

    def unseen(self, numbers: Iterable[int]) -> list[int]:
        """Those tasks of which nothing has come yet."""
        in_hand = {
            parse_group_id(group_id)
            for books in self.policies.values()
            for group_id in (*books.arriving, *books.unsifted, *books.buffer.first(len(books.buffer)))
        }
        seen = {place[0] for place in in_hand if place is not None}
        return [
            number
            for number in numbers
            if number not in seen and not any(books.settled.has_task(number) for books in self.policies.values())
        ]

    def apply(self, record: Record) -> None:
        if isinstance(record, TasksIssued):
            if record.first != self.issued:
                raise LedgerError(f"tasks issued from {record.first} where {self.issued} was due")
            self.issued += record.count
            self.newest_tasks = range(record.first, self.issued)
            self.newest_positions = record.positions or range(self.next_position, self.next_position + record.count)
            self.next_position = (
                self.next_position + record.count if record.next_position is None else record.next_position
            )
            return
        books = self.policies.get(record.policy)
        if books is None:
            raise LedgerError(f"the ledger speaks of policy {record.policy!r}, which the job does not have")
        match record:
            case StepGranted():
                if record.step != books.next_step:
                    raise LedgerError(f"{books.name}: step {record.step} granted where {books.next_step} was due")
                self._check_buffered(books, (*record.groups, *record.dropped), step=record.step)
                self._tell(books, (*record.groups, *record.dropped))
                books.grant(record)
                books.drop(record.dropped)
                if self._witness is not None:
                    self._witness.stepped(books.name, record.step)
            case GroupsDropped():
                self._check_buffered(books, record.dropped, step=record.step)
                self._tell(books, record.dropped)
                books.drop(record.dropped)
            case GroupsSifted():
                _check_unsifted(books, record)
                # All at once and whole: whoever learnt only of those left out would take them for the rule.
                for group_id in _sifted(record):
                    self._observe(books.unsifted[group_id])
                books.sift(record)
            case StepTimed():
                books.time(record)
            case StepTrained():
                books.trained(record.step)
            case StepDurable():
                books.durable(record.step)
            case TrainerAttempt():
                books.attempt, books.world_size = record.attempt, record.world_size
            case PolicyFinished():
                books.finished = record.reason
                books.surface(tuple(books.unsifted))
                books.drop(books.buffer.first(len(books.buffer)))

    def running_groups(self, policy: str) -> int:
        """Groups asked for and not at their end."""
        books = self.policies[policy]
        return self.issued * books.groups_per_task - books.finished_groups

    def capacity_tasks(self, needed: Callable[[int], int] = lambda missing: missing) -> int:
        """Tasks that may be issued now. Every task is work for every policy, so the tightest that still learns decides;
        one that has finished no longer counts, or it would stop the others. `needed` says how many groups it takes to
        fill so many places, where a filter will leave some out.
        """
        return min(
            (self._capacity(books, needed) for books in self.policies.values() if books.finished is None),
            default=0,
        )

    def _capacity(self, books: PolicyBooks, needed: Callable[[int], int]) -> int:
        missing = capacity(
            max_staleness=self._max_staleness,
            version=books.trained_steps,
            batch_size=self._batch_size,
            accepted=books.accepted_groups * self._group_size,
            running=0,
        )
        groups = needed(missing // self._group_size) - self.running_groups(books.name)
        return max(0, groups) // books.groups_per_task

    def can_grant(self, policy: str) -> bool:
        books = self.policies[policy]
        return len(books.buffer) - self._stale(books) >= self.groups_per_step

    def can_decide(self, policy: str) -> bool:
        """Whether `propose` would have something to say."""
        return self.can_grant(policy) or self._stale(self.policies[policy]) > 0

    def propose(self, policy: str, *, now: float) -> StepGranted | GroupsDropped | None:
        """The next step's groups if there are enough, else those to give up: to be recorded first and applied then."""
        books = self.policies[policy]
        stale = self._stale(books)
        dropped = books.buffer.first(stale)
        if self.can_grant(policy):
            groups = books.buffer.first(self.groups_per_step, after=stale)
            return StepGranted(policy=policy, step=books.next_step, groups=groups, dropped=dropped, granted_at=now)
        if dropped:
            # They hold room that admission would give to fresh groups: without this, enough of them stop the job.
            return GroupsDropped(policy=policy, step=books.next_step, dropped=dropped)
        return None

    def _stale(self, books: PolicyBooks) -> int:
        return books.buffer.stale_count(step=books.next_step, max_staleness=self._max_staleness)

    def _check_buffered(self, books: PolicyBooks, group_ids: tuple[str, ...], *, step: int) -> None:
        if len(set(group_ids)) != len(group_ids):
            raise LedgerError(f"{books.name}: step {step} takes a group twice")
        books.surface(group_ids)  # the manifest may have had no filter when this was written
        for group_id in group_ids:
            if group_id not in books.buffer:
                raise LedgerError(f"{books.name}: step {step} takes group {group_id}, which is not in the buffer")

    def _tell(self, books: PolicyBooks, group_ids: tuple[str, ...]) -> None:
        for group in map(books.buffer.group, group_ids):
            if not group.sifted:
                self._observe(group)

    def _observe(self, group: Group) -> None:
        if self._witness is not None:
            self._witness.observe(group.outcome())


def _sifted(record: GroupsSifted) -> tuple[str, ...]:
    return (*record.kept, *(reduced.group_id for reduced in record.reduced), *record.left_out)


def _check_unsifted(books: PolicyBooks, record: GroupsSifted) -> None:
    named = _sifted(record)
    if len(set(named)) != len(named):
        raise LedgerError(f"{books.name}: a group was sifted twice")
    for group_id in named:
        if group_id not in books.unsifted:
            raise LedgerError(f"{books.name}: group {group_id} was sifted and is not there")
