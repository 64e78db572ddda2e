"""The books of stages against a model that keeps everything: any order of rows, columns, repetitions, failures, grants,
snapshots and restarts, and never a difference.

The solver's rows go through four stages, one of which grades and one of which leaves rows out; of the judge's rows only
the reference is asked.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.dataflow.books import GROUP, header, ledger
from tests.support.dataflow.ledger_pictures import Witnessed, picture
from tests.support.dataflow.stages import column, stage
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.groups import Group
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import (
    GroupsFiltered,
    Record,
    ReducedGroup,
    StepDurable,
    StepGranted,
    StepTimed,
    TasksIssued,
)
from trimtab.dataflow.ledger.snapshot import LedgerSnapshot, Restoration, take_snapshot
from trimtab.dataflow.ledger.staged_group import MAX_REFUSED, ColumnArrival
from trimtab.fabric.wire.column import ColumnHeader, rows_digest
from trimtab.fabric.wire.header import TrajectoryHeader

STAGES = (
    stage("reference"),
    stage("grade", "Reward", needs=["reference"], rows=["solver"]),
    stage("sift", "Filter", needs=["grade"], rows=["solver"]),
    stage("own", "Custom", rows=["solver"]),
)
NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "solver": {"reference": (), "grade": ("reference",), "sift": ("grade",), "own": ()},
    "judge": {"reference": ()},
}
JOINED = {"reference", "own"}
POLICIES = ("solver", "judge")


class Told:
    """What the model knows of a complete group."""

    def __init__(self, policy: str, group_id: str, rows: list[str]) -> None:
        self.policy = policy
        self.group_id = group_id
        self.rows = rows
        self.taken: dict[str, tuple[int, ColumnHeader]] = {}
        self.refused: Counter[str] = Counter()
        self.end: str | None = None

    def ready(self) -> list[str]:
        needs = NEEDS[self.policy]
        return [name for name, own in needs.items() if name not in self.taken and all(one in self.taken for one in own)]

    def kept(self) -> list[str]:
        if "sift" not in self.taken:
            return self.rows
        choices = self.taken["sift"][1].keep or ()
        return [row for row, keep in zip(self.rows, choices, strict=True) if keep]

    def rewards(self) -> dict[str, float]:
        if "grade" not in self.taken:
            return dict.fromkeys(self.rows, 1.0)
        return dict(zip(self.rows, self.taken["grade"][1].rewards or (), strict=True))


class StageMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = self.empty(has_filters=False)
        self.rows: dict[int, TrajectoryHeader] = {}
        self.columns: dict[int, ColumnHeader] = {}
        """By sequence, as far as they have not been trimmed."""
        self.row_sequence = 0
        self.column_sequence = 0
        self.journal: list[Record] = []
        self.snapshot: bytes | None = None
        self.waiting: list[tuple[int, str]] = []
        """Groups asked for: task and policy."""
        self.told: dict[str, Told] = {}
        self.asked: Counter[tuple[str, str]] = Counter()
        """Group and stage, how often the books wanted it asked since they are these books."""

    @staticmethod
    def empty(*, has_filters: bool) -> Ledger:
        return ledger(policies=dict.fromkeys(POLICIES, 1), has_filters=has_filters, witness=Witnessed(), stages=STAGES)

    def write(self, record: Record) -> None:
        self.journal.append(record)
        self.ledger.apply(record)

    @rule()
    def issue(self) -> None:
        capacity = self.ledger.capacity_tasks()
        if capacity:
            first = self.ledger.issued
            self.write(TasksIssued(first=first, count=capacity))
            self.waiting += [(task, policy) for task in range(first, first + capacity) for policy in POLICIES]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), count=st.integers(1, 6), fails=st.sampled_from([False] * 9 + [True]))
    def groups_complete(self, data: st.DataObject, count: int, fails: bool) -> None:
        for _ in range(min(count, len(self.waiting))):
            task, policy = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
            version = self.ledger.trainers[policy].trained_steps
            ids, arrival = [], None
            for index in range(GROUP):
                one = header(task, index, policy=policy, version=version, error="gone" if fails and index else None)
                self.row_sequence += 1
                self.rows[self.row_sequence] = one
                ids.append(self.row_id(one))
                arrival = self.ledger.arrived(self.row_sequence, ids[-1], one)
            assert arrival is (Arrival.FAILED if fails else Arrival.STAGED)
            if not fails:
                self.told[f"t{task}.{policy}"] = Told(policy, f"t{task}.{policy}", ids)

    @staticmethod
    def row_id(one: TrajectoryHeader) -> str:
        return f"{one.group_id}.{one.group_index}.{one.part}"

    def say(self, told: Told, name: str, rows: list[str], *, run: str, good: bool, error: str | None) -> ColumnArrival:
        self.column_sequence += 1
        rewards = [0.5 + len(self.columns) % 7 + place for place in range(len(rows))] if name == "grade" else None
        choices = [(self.column_sequence + place) % 3 != 0 for place in range(len(rows))] if name == "sift" else None
        one = column(
            name,
            told.group_id,
            rows if good else [*rows, "another"],
            policy=told.policy,
            run=run,
            rewards=None if error else rewards,
            keep=None if error else choices,
            error=error,
        )
        self.columns[self.column_sequence] = one
        return self.ledger.column_arrived(self.column_sequence, one)

    @precondition(lambda self: any(told.end is None for told in self.told.values()))
    @rule(
        data=st.data(),
        count=st.integers(1, 8),
        kind=st.sampled_from(["good"] * 12 + ["refused", "failed", "late", "unasked"]),
    )
    def columns_arrive(self, data: st.DataObject, count: int, kind: str) -> None:
        for _ in range(count):
            open_groups = [told for told in self.told.values() if told.end is None]
            if not open_groups:
                return
            told = data.draw(st.sampled_from(open_groups))
            self.one_column(told, data, kind)

    def one_column(self, told: Told, data: st.DataObject, kind: str) -> None:
        ready = told.ready()
        if kind == "late":
            if told.taken:
                name = data.draw(st.sampled_from(sorted(told.taken)))
                arrival = self.say(told, name, told.rows, run="late", good=True, error=None)
                assert arrival is ColumnArrival.DUPLICATE
            return
        if kind == "unasked":
            others = [name for name in NEEDS[told.policy] if name not in told.taken and name not in ready]
            if others:
                self.refused(told, others[0], self.say(told, others[0], told.rows, run="x", good=True, error=None))
            return
        name = data.draw(st.sampled_from(ready))
        if kind == "refused":
            self.refused(told, name, self.say(told, name, told.rows, run="bad", good=False, error=None))
            return
        arrival = self.say(told, name, told.rows, run="first", good=True, error="dead" if kind == "failed" else None)
        told.taken[name] = self.column_sequence, self.columns[self.column_sequence]
        if kind == "failed":
            told.end = "failed"
            assert arrival is ColumnArrival.FAILED
        elif name == "sift" and not told.kept():
            told.end = "left out"
            assert arrival is ColumnArrival.LEFT_OUT
        elif len(told.taken) == len(NEEDS[told.policy]):
            told.end = "done"
            assert arrival is ColumnArrival.DONE
        else:
            assert arrival is ColumnArrival.NEW

    def refused(self, told: Told, name: str, arrival: ColumnArrival) -> None:
        told.refused[name] += 1
        if told.refused[name] < MAX_REFUSED:
            assert arrival is ColumnArrival.REFUSED
        else:
            told.end = "failed"
            assert arrival is ColumnArrival.FAILED

    @precondition(lambda self: any(told.end is not None for told in self.told.values()))
    @rule(data=st.data())
    def column_of_a_group_that_is_over(self, data: st.DataObject) -> None:
        told = data.draw(st.sampled_from([told for told in self.told.values() if told.end is not None]))
        name = data.draw(st.sampled_from(sorted(NEEDS[told.policy])))
        assert self.say(told, name, told.rows, run="late", good=True, error=None) is ColumnArrival.DUPLICATE

    @rule(count=st.integers(1, 5))
    def stages_are_asked(self, count: int) -> None:
        for policy, group_id, name in self.ledger.stages.due(count):
            told = self.told[group_id]
            assert (told.policy, told.end) == (policy, None)
            assert name in told.ready()
            self.asked[group_id, name] += 1
            assert self.asked[group_id, name] <= 1 + told.refused[name]
            staged = self.ledger.stages.staged[policy][group_id]
            assert [row.trajectory_id for row in staged.rows_for(name)] == told.rows
            needed = NEEDS[policy][name]
            assert [(one.stage, one.sequence) for one in staged.references(name)] == [
                (one, told.taken[one][0]) for one in needed
            ]

    @rule(policy=st.sampled_from(POLICIES), kept=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def filters_are_asked(self, policy: str, kept: list[int]) -> None:
        named = [(one, kept[number % len(kept)]) for number, one in enumerate(self.ledger.streams[policy].unfiltered)]
        if not named:
            return
        held = self.ledger.streams[policy].unfiltered
        self.write(
            GroupsFiltered(
                policy=policy,
                kept=tuple(one for one, choice in named if choice == 2),
                reduced=tuple(ReducedGroup(one, (held[one].samples[0].index,)) for one, choice in named if choice == 1),
                left_out=tuple(one for one, choice in named if choice == 0),
            )
        )

    @rule(policy=st.sampled_from(POLICIES))
    def trainer_asks(self, policy: str) -> None:
        proposal = self.ledger.propose(policy, now=1.0)
        if proposal is not None:
            self.write(proposal)
        if isinstance(proposal, StepGranted):
            assert all(self.told[group_id].end == "done" for group_id in proposal.groups)

    @rule(policy=st.sampled_from(POLICIES), durable=st.booleans())
    def step_is_trained(self, policy: str, durable: bool) -> None:
        books = self.ledger.trainers[policy]
        step = min(books.trained_steps, books.next_step - 1)
        if step >= 0 and books.wants_time(step):
            self.write(StepTimed(policy=policy, step=step, ranks=1, wait_seconds=1.0, step_seconds=10.0, at=1.0))
        if durable and books.trained_steps > books.durable_steps:
            self.write(StepDurable(policy=policy, step=books.trained_steps - 1))

    @rule()
    def compact(self) -> None:
        """Records give way to a snapshot, and rows and columns that nobody needs are gone."""
        witness = self.ledger._witness
        assert isinstance(witness, Witnessed)
        snapshot = take_snapshot(self.ledger, learnt=witness.state())
        self.snapshot = msgspec.msgpack.encode(snapshot)
        self.journal = []
        self.rows = {sequence: one for sequence, one in self.rows.items() if sequence >= snapshot.floor}
        self.columns = {sequence: one for sequence, one in self.columns.items() if sequence >= snapshot.stages.floor}

    @rule(has_filters=st.booleans())
    def restart(self, has_filters: bool) -> None:
        """What comes out is what was there; what is not answered is asked again."""
        recovered = self.recovered(has_filters=self.ledger.has_filters)
        assert picture(recovered) == picture(self.ledger)
        assert recovered._witness == self.ledger._witness
        self.ledger = self.recovered(has_filters=has_filters)
        self.asked.clear()
        due = {(group_id, name) for _, group_id, name in self.recovered(has_filters=has_filters).stages.due(10_000)}
        assert due == {
            (told.group_id, name) for told in self.told.values() if told.end is None for name in told.ready()
        }

    def recovered(self, *, has_filters: bool) -> Ledger:
        """From the snapshot, then rows, then columns, then records."""
        recovered = self.empty(has_filters=has_filters)
        recovered.begin_replay()
        known = known_column = 0
        if self.snapshot is not None:
            snapshot = msgspec.msgpack.decode(self.snapshot, type=LedgerSnapshot)
            known, known_column = snapshot.last_sequence, snapshot.stages.last_sequence
            columns = [(sequence, one) for sequence, one in self.columns.items() if sequence <= known_column]
            restoration = Restoration(recovered, snapshot, columns)
            for sequence, one in self.rows.items():
                if sequence <= known:
                    restoration.arrived(sequence, self.row_id(one), one)
            restoration.finish()
            assert isinstance(recovered._witness, Witnessed)
            recovered._witness.restore(snapshot.learnt)
        for sequence, one in self.rows.items():
            if sequence > known:
                recovered.arrived(sequence, self.row_id(one), one)
        for sequence, said in self.columns.items():
            if sequence > known_column:
                recovered.column_arrived(sequence, said)
        for record in self.journal:
            recovered.apply(record)
        recovered.end_replay()
        return recovered

    @invariant()
    def what_waits_is_what_the_model_says(self) -> None:
        for policy in POLICIES:
            waiting = {told.group_id for told in self.told.values() if told.policy == policy and told.end is None}
            assert set(self.ledger.stages.staged[policy]) == waiting
            own = [told for told in self.told.values() if told.policy == policy]
            assert self.ledger.under_way(policy) == (
                self.ledger.running_groups(policy) + len(waiting) + len(self.ledger.streams[policy].unfiltered)
            )
            failed = sum(1 for told in own if told.end == "failed")
            assert self.ledger.streams[policy].failed_groups >= failed
        for name in NEEDS["solver"]:
            ready = sum(1 for told in self.told.values() if told.end is None and name in told.ready())
            assert self.ledger.stages.waiting(name) == ready

    @invariant()
    def every_group_is_as_its_stages_have_left_it(self) -> None:
        for group in self.groups():
            told = self.told[group.group_id]
            assert told.end == "done"
            kept = told.kept()
            assert {sample.trajectory_id for sample in group.samples} <= set(kept)
            if not group.filtered:
                assert [sample.trajectory_id for sample in group.samples] == kept
            rewards = told.rewards()
            assert all(sample.reward == rewards[sample.trajectory_id] for sample in group.samples)
            joined = {name: taken[0] for name, taken in told.taken.items() if name in JOINED}
            assert {one.stage: one.sequence for one in group.columns} == joined
            assert all(sequence in self.columns for sequence in joined.values()), "a column that is needed is gone"

    def groups(self) -> list[Group]:
        found = [group for stream in self.ledger.streams.values() for group in stream.unfiltered.values()]
        for trainer in self.ledger.trainers.values():
            found += [group for buffer in trainer.buffers.values() for group in buffer]
            found += [allotment.group for step in trainer.granted for allotment in trainer.allotments(step)]
        return found

    @invariant()
    def a_column_is_of_the_rows_it_was_computed_of(self) -> None:
        for own in self.ledger.stages.staged.values():
            for staged in own.values():
                for name, said in staged.said.items():
                    assert said.header.rows_digest == rows_digest(self.told[staged.group.group_id].rows)
                    assert self.columns[said.sequence].stage == name


StageMachine.TestCase.settings = settings(
    stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStages = StageMachine.TestCase
