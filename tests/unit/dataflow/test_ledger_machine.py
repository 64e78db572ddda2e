"""The ledger against a model that keeps everything: any order of arrivals, grants, snapshots and restarts, and never a
difference.

Two policies, one of which speaks in two roles, so that each task is one group for the first and two for the second. The
first trains on a mix of both streams, and both replay. Episodes have no row to three, and before some of them come rows
of a run that was given up.
"""

from __future__ import annotations

from collections import Counter
from itertools import cycle

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.dataflow.books import GROUP, STALENESS, header, ledger
from tests.support.dataflow.ledger_pictures import Witnessed, picture
from trimtab.api.data import Replay as ReplaySettings
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import (
    GroupsDropped,
    GroupsFiltered,
    PolicyFinished,
    Record,
    ReducedGroup,
    StepDurable,
    StepGranted,
    StepTimed,
    StreamsRouted,
    TasksIssued,
    TrainerAttempt,
)
from trimtab.dataflow.ledger.snapshot import LedgerSnapshot, Restoration, take_snapshot
from trimtab.dataflow.mixing import MixingSchedule
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.dataflow.selection.replay import Replay
from trimtab.fabric.wire.header import TrajectoryHeader

BATCH = 8
PLACES = BATCH // GROUP
ROLES = {"solver": ("solver",), "judge": ("judge", "critic")}
POLICIES = {policy: len(roles) for policy, roles in ROLES.items()}
MIX = {"solver": {"solver": 2.0, "judge": 1.0}, "judge": {"judge": 1.0}}
REPLAY = ReplaySettings(ratio=0.3, size=10, max_age=4, max_uses=3)
QUOTA = 1
"""Of four places, three tenths."""
OWNERS = {role: policy for policy, roles in ROLES.items() for role in roles}
SCHEDULES = {policy: MixingSchedule(weights, seed=0) for policy, weights in MIX.items()}
SELECTION = Replay(REPLAY, Fresh(MIX, seed=0))
"""It remembers nothing, so that all ledgers may share it: a restart is no slower for a mix that is spread anew."""
policies = st.sampled_from(sorted(POLICIES))


def parts_of(task: int, role: str, index: int) -> int:
    """Rows of an episode, and none for the first one of some groups, or for all of a group."""
    if task % 11 == 5 or (task % 4 == 1 and index == 0):
        return 0
    return 1 + (task + len(role) + index) % 3


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = self.empty(has_filters=True)
        self.stream: dict[int, TrajectoryHeader] = {}
        """By sequence, as far as they have not been trimmed."""
        self.sequence = 0
        self.journal: list[Record] = []
        """Since the newest snapshot."""
        self.snapshot: bytes | None = None
        self.waiting: list[tuple[int, str, str, int]] = []
        """Samples asked for and not arrived: task, policy, role, index."""
        self.first: dict[tuple[str, str, int], TrajectoryHeader] = {}
        self.complete: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.empty_groups: Counter[str] = Counter()
        """Groups by stream of which all episodes are closed; and those among them of which one failed, or none has a
        row.
        """
        self.uses: dict[tuple[str, str], list[int]] = {}
        """By trainer and group, the steps that trained on it."""
        self.dropped: set[tuple[str, str]] = set()
        self.filtered: set[str] = set()
        self.finished: set[str] = set()

    @staticmethod
    def empty(*, has_filters: bool) -> Ledger:
        return ledger(
            policies=POLICIES, has_filters=has_filters, witness=Witnessed(), selection=SELECTION, batch_size=BATCH
        )

    def write(self, record: Record) -> None:
        self.journal.append(record)
        self.ledger.apply(record)

    def arrive(self, one: TrajectoryHeader) -> Arrival:
        self.sequence += 1
        self.stream[self.sequence] = one
        return self.ledger.arrived(self.sequence, f"{one.group_id}.{one.group_index}.{one.part}", one)

    @initialize(turns=st.integers(0, 6))
    def begin(self, turns: int) -> None:
        self.write(StreamsRouted(routes={policy: tuple(streams) for policy, streams in MIX.items()}))
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
        for policy in POLICIES:
            self.trainer_asks(policy, portions=1)
            self.step_is_timed(policy, ranks=1, wait=1.0)

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
        version = max(0, self.ledger.trainers[policy].trained_steps - lag)
        parts = 1 if fails else parts_of(task, role, index)
        rows = [
            header(
                task,
                index,
                policy=policy,
                role=role,
                version=version,
                error="engine-gone" if fails else None,
                part=part,
                parts=parts,
                run="last",
            )
            for part in reversed(range(max(1, parts)))
        ]
        self.first[policy, rows[0].group_id, index] = rows[0]
        group = [self.first.get((policy, rows[0].group_id, number)) for number in range(GROUP)]
        if None not in group:
            self.complete[policy] += 1
            failed = any(sample.error for sample in group if sample)
            self.failed[policy] += failed
            self.empty_groups[policy] += not failed and all(sample.parts == 0 for sample in group if sample)
        if task % 3 == 0:
            for part in range(2):  # a worker that died before its third row
                given_up = header(task, index, policy=policy, role=role, version=0, part=part, parts=3, run="first")
                assert self.arrive(given_up) is Arrival.NEW
        *others, last = rows
        assert all(self.arrive(one) is Arrival.NEW for one in others)
        assert self.arrive(last) in (Arrival.NEW, Arrival.COMPLETED, Arrival.FAILED, Arrival.EMPTY)

    @precondition(lambda self: self.first)
    @rule(data=st.data(), newer=st.booleans())
    def sample_arrives_again(self, data: st.DataObject, newer: bool) -> None:
        """The same sample, or another attempt at it with other weights: the first one counts, also when it is gone."""
        old = data.draw(st.sampled_from(list(self.first.values())))
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
        named = list(zip(self.ledger.streams[policy].unfiltered, cycle(verdicts), strict=False))
        if named:
            left_out = tuple(group_id for group_id, kept in named if kept == 0)
            self.write(
                GroupsFiltered(
                    policy=policy,
                    kept=tuple(group_id for group_id, kept in named if kept == 2),
                    reduced=tuple(ReducedGroup(group_id, (1,)) for group_id, kept in named if kept == 1),
                    left_out=left_out,
                )
            )
            self.filtered |= set(left_out)

    @rule(policy=policies, portions=st.sampled_from([1, 1, 2, 3, 4]))
    def trainer_asks(self, policy: str, portions: int) -> None:
        if policy in self.finished:
            return
        books = self.ledger.trainers[policy]
        filled = books.filled
        eligible = self.eligible(policy)
        left = PLACES - filled
        # A step that is all there comes whole, however small the portions are that were asked for.
        places = left if self.ledger.can_grant(policy) else min(-(-PLACES // portions), left)
        fresh_before = sum(len(steps) > 0 for (owner, _), steps in self.uses.items() if owner == policy)
        proposal = self.ledger.propose(policy, now=1.0, portions=portions)
        if portions == 1:
            assert (proposal is not None) == self.ledger.can_decide(policy)
        if proposal is None:
            return
        self.write(proposal)
        for group_id in proposal.dropped:
            assert self.staleness(policy, group_id, step=proposal.step) > STALENESS
            assert (policy, group_id) not in self.uses.keys() | self.dropped
            self.dropped.add((policy, group_id))
        if isinstance(proposal, GroupsDropped):
            return
        self.check_portion(policy, proposal, filled=filled, places=places, eligible=eligible)
        self.check_mix(policy, proposal, before=fresh_before)
        for group_id in (*proposal.groups, *proposal.replayed):
            self.uses.setdefault((policy, group_id), []).append(proposal.step)
        assert books.next_step == proposal.step + proposal.last

    def check_portion(self, policy: str, granted: StepGranted, *, filled: int, places: int, eligible: set[str]) -> None:
        assert len(granted.groups) + len(granted.replayed) == places
        assert granted.last == (filled + places == PLACES)
        quota = round((filled + places) * REPLAY.ratio) - round(filled * REPLAY.ratio)
        assert len(granted.replayed) == min(quota, len(eligible))
        assert eligible.issuperset(granted.replayed)
        for group_id in granted.groups:
            assert (policy, group_id) not in self.uses.keys() | self.dropped, "a fresh group that was there before"
            assert group_id not in self.filtered
            assert max(0, self.staleness(policy, group_id, step=granted.step)) <= STALENESS

    def check_mix(self, policy: str, granted: StepGranted, *, before: int) -> None:
        schedule = SCHEDULES[policy]
        places = [schedule.names[schedule.at(before + number)[0]] for number in range(len(granted.groups))]
        assert Counter(map(self.owner, granted.groups)) == Counter(places)

    @rule(policy=policies, ranks=st.integers(1, 2), wait=st.floats(0, 10))
    def step_is_timed(self, policy: str, ranks: int, wait: float) -> None:
        books = self.ledger.trainers[policy]
        step = min(books.trained_steps, books.next_step - 1)
        if step >= 0 and books.wants_time(step):
            self.write(StepTimed(policy=policy, step=step, ranks=ranks, wait_seconds=wait, step_seconds=10.0, at=1.0))

    @rule(policy=policies)
    def step_is_durable(self, policy: str) -> None:
        books = self.ledger.trainers[policy]
        if books.trained_steps > books.durable_steps:
            self.write(StepDurable(policy=policy, step=books.trained_steps - 1))
            assert min(books.granted, default=books.durable_steps) >= books.durable_steps

    @precondition(lambda self: self.ledger.trainers["judge"].next_step > 2)
    @rule()
    def judge_finishes(self) -> None:
        if "judge" not in self.finished:
            self.finished.add("judge")
            self.write(PolicyFinished(policy="judge", reason="enough"))

    @rule()
    def compact(self) -> None:
        """Records give way to a snapshot, and trajectories that nobody needs are gone."""
        witness = self.ledger._witness
        assert isinstance(witness, Witnessed)
        snapshot = take_snapshot(self.ledger, learnt=witness.state())
        self.snapshot = msgspec.msgpack.encode(snapshot)
        self.journal = []
        self.stream = {sequence: one for sequence, one in self.stream.items() if sequence >= snapshot.floor}

    def recovered(self, *, has_filters: bool) -> Ledger:
        """From the snapshot, then headers, then records."""
        recovered = self.empty(has_filters=has_filters)
        recovered.begin_replay()
        known = 0
        if self.snapshot is not None:
            snapshot = msgspec.msgpack.decode(self.snapshot, type=LedgerSnapshot)
            known = snapshot.last_sequence
            restoration = Restoration(recovered, snapshot)
            for sequence, one in self.stream.items():
                if sequence <= known:
                    restoration.arrived(sequence, f"{one.group_id}.{one.group_index}.{one.part}", one)
            restoration.finish()
            assert isinstance(recovered._witness, Witnessed)
            recovered._witness.restore(snapshot.learnt)
        for sequence, one in self.stream.items():
            if sequence > known:
                recovered.arrived(sequence, f"{one.group_id}.{one.group_index}.{one.part}", one)
        for record in self.journal:
            recovered.apply(record)
        recovered.end_replay()
        return recovered

    @rule()
    def restart(self) -> None:
        """What comes out is what was there."""
        recovered = self.recovered(has_filters=self.ledger.has_filters)
        assert picture(recovered) == picture(self.ledger)
        assert recovered._witness == self.ledger._witness
        self.ledger = recovered

    @rule(has_filters=st.booleans())
    def restart_with_another_manifest(self, has_filters: bool) -> None:
        """Filters may come and go: what was decided stands, and what was not is up to the manifest of now."""
        self.ledger = self.recovered(has_filters=has_filters)
        assert has_filters or not any(stream.unfiltered for stream in self.ledger.streams.values())

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        for policy, stream in self.ledger.streams.items():
            assert stream.finished_groups == self.complete[policy]
            assert stream.failed_groups == self.failed[policy]
            assert stream.empty_groups == self.empty_groups[policy]
            assert stream.filtered_groups == sum(1 for group_id in self.filtered if self.owner(group_id) == policy)
        for policy, trainer in self.ledger.trainers.items():
            assert trainer.dropped_groups == sum(1 for owner, _ in self.dropped if owner == policy)
            assert trainer.fresh_groups == sum(1 for owner, _ in self.uses if owner == policy)
            for stream_name in MIX[policy]:
                held = 0 if policy in self.finished else self.modelled_buffer(policy, stream_name)
                assert len(trainer.buffers[stream_name]) == held

    @invariant()
    def nothing_is_replayed_too_often_and_the_pool_is_bounded(self) -> None:
        for policy, trainer in self.ledger.trainers.items():
            assert sum(used.group.episodes for used in trainer.pool) <= REPLAY.size
            for used in trainer.pool:
                steps = self.uses[policy, used.group.group_id]
                assert used.uses == len(steps) < REPLAY.max_uses
                assert used.last_step == steps[-1]
        for steps in self.uses.values():
            assert len(set(steps)) == len(steps) <= REPLAY.max_uses

    @invariant()
    def what_waits_is_the_last_run_whole(self) -> None:
        for trainer in self.ledger.trainers.values():
            for buffer in trainer.buffers.values():
                for group in buffer:
                    task, role = group.group_id[1:].split(".")
                    rows = Counter(sample.index for sample in group.samples)
                    assert all(count == parts_of(int(task), role, index) for index, count in rows.items())
                    assert all(self.stream[sample.sequence].run == "last" for sample in group.samples)

    @invariant()
    def curators_hear_of_everything_once(self) -> None:
        witness = self.ledger._witness
        assert isinstance(witness, Witnessed)
        assert len(set(witness.told)) == len(witness.told)

    @invariant()
    def memory_follows_what_is_in_flight(self) -> None:
        for stream in self.ledger.streams.values():
            assert stream.ended.held() <= self.ledger.issued * stream.groups_per_task
        for trainer in self.ledger.trainers.values():
            assert len(trainer.rewards) <= 3

    def owner(self, group_id: str) -> str:
        return OWNERS[group_id.partition(".")[2]]

    def staleness(self, trainer: str, group_id: str, *, step: int) -> int:
        owner = self.owner(group_id)
        versions = [self.first[owner, group_id, index].oldest_version for index in range(GROUP)]
        oldest = min(version for version in versions if version is not None)
        return (step if owner == trainer else self.ledger.trainers[owner].trained_steps) - oldest

    def eligible(self, policy: str) -> set[str]:
        """What may be replayed, of what the pool holds."""
        books = self.ledger.trainers[policy]
        return {
            used.group.group_id
            for used in books.pool
            if len(self.uses[policy, used.group.group_id]) < REPLAY.max_uses
            and books.next_step not in self.uses[policy, used.group.group_id]
            and self.staleness(policy, used.group.group_id, step=books.next_step) <= REPLAY.max_age
        }

    def modelled_buffer(self, trainer: str, stream: str) -> int:
        taken = [group_id for owner, group_id in (*self.uses, *self.dropped) if owner == trainer]
        gone = sum(1 for group_id in taken if self.owner(group_id) == stream)
        left_out = sum(1 for group_id in self.filtered if self.owner(group_id) == stream)
        whole = self.complete[stream] - self.failed[stream] - self.empty_groups[stream]
        return whole - left_out - gone - len(self.ledger.streams[stream].unfiltered)

    def modelled_capacity(self) -> int:
        rooms = []
        for policy, books in self.ledger.trainers.items():
            steps = STALENESS + 1 + books.trained_steps - books.next_step
            if policy in self.finished:
                continue
            rooms.append(0)
            if steps <= 0:
                continue
            left = PLACES - books.filled
            quota = round(PLACES * REPLAY.ratio) - round(books.filled * REPLAY.ratio)
            fresh = left - min(quota, len(self.eligible(policy))) + (steps - 1) * (PLACES - QUOTA)
            schedule = SCHEDULES[policy]
            wanted = Counter(schedule.names[schedule.at(books.fresh_groups + number)[0]] for number in range(fresh))
            for stream, count in wanted.items():
                roles = len(ROLES[stream])
                unfiltered = len(self.ledger.streams[stream].unfiltered)
                under_way = self.ledger.issued * roles - self.complete[stream] + unfiltered
                missing = max(0, count - self.modelled_buffer(policy, stream)) - under_way
                tasks = max(0, missing) // roles
                rooms[-1] = max(rooms[-1], 1 if tasks == 0 and missing > 0 and under_way <= 0 else tasks)
        return min(rooms)


LedgerMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedger = LedgerMachine.TestCase
