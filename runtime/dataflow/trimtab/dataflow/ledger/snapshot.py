"""All that the ledger knows at one moment, small enough to be written down: ids and counts. What the headers say is not
in it, because those of every group that still matters are in the streams of trajectories and columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import zstandard

from trimtab.dataflow.ledger.errors import LedgerError, RowsGone
from trimtab.dataflow.ledger.evaluation_books import parse_evaluation_group
from trimtab.dataflow.ledger.groups import Allotment, Group, Kept, PartialGroup, Sample
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import EvaluationEnded, EvaluationStarted, SettingsTaken, StreamsRouted
from trimtab.dataflow.ledger.replay_pool import UsedGroup
from trimtab.dataflow.ledger.staged_group import StagedGroup
from trimtab.dataflow.ledger.step_times import StepTime
from trimtab.dataflow.ledger.stream_books import StreamBooks
from trimtab.dataflow.ledger.trainer_books import TrainerBooks
from trimtab.fabric.wire.best_versions import BestVersion
from trimtab.fabric.wire.column import ColumnHeader
from trimtab.fabric.wire.header import TrajectoryHeader

FORMAT = 2
READ_FORMATS = (1, 2)
_MAX_BYTES = 4 << 30


class UnknownLedgerFormat(LedgerError):
    """Another version of Trimtab wrote it, and this one would misread it."""

    def __init__(self, found: int) -> None:
        read = " and ".join(map(str, READ_FORMATS))
        super().__init__(
            f"the job's ledger has format {found}, and this version of Trimtab reads {read}: run the job with the"
            " version that wrote it, or one release apart from that"
        )


class StreamState(msgspec.Struct, kw_only=True):
    ended: dict[str, tuple[int, list[int]]]
    unfiltered: list[str] = msgspec.field(name="unsifted")
    staged: list[str] = []
    finished_groups: int
    produced_tokens: int
    filtered_groups: int
    failed_groups: int
    empty_groups: int = 0
    written_off_groups: int = 0
    settled_below: int = 0
    duplicates: int


class TrainerState(msgspec.Struct, kw_only=True):
    buffers: dict[str, list[str]]
    labels: dict[str, tuple[str, ...]] = {}
    pool: list[tuple[str, int, int]]
    """Group, uses and last step."""
    granted: dict[int, list[list[tuple[str, int]]]]
    """By step and portion, groups and their uses before."""
    times: dict[int, tuple[int, float, float]] = msgspec.field(name="step_times", default_factory=dict)
    """By step, how many ranks told, and the sums of what they waited and took."""
    rank_times: dict[int, dict[int, tuple[float, float]]] = msgspec.field(name="times", default_factory=dict)
    """By step and rank, in snapshots of older versions."""
    rewards: list[float]
    counts: dict[str, int]
    finished: str | None


class EvaluationState(msgspec.Struct, kw_only=True):
    running: EvaluationStarted | None
    ended: int
    last_lead: int | None
    latest: EvaluationEnded | None
    best: list[tuple[str, BestVersion]] = []
    """With the policy."""


class StageState(msgspec.Struct, kw_only=True):
    last_sequence: int = 0
    """Of the last column that these books know of."""
    floor: int = 1
    """No column before this one is needed any more."""
    places: dict[int, int] = {}
    """By task, the place of its prompt."""
    done: dict[str, int] = {}
    failed: dict[str, int] = {}


class LedgerSnapshot(msgspec.Struct, kw_only=True):
    format: int
    last_sequence: int
    """Of the last trajectory that these books know of."""
    floor: int
    """No trajectory before this one is needed any more."""
    issued: int
    next_position: int
    newest_first: int
    newest_positions: list[int]
    streams: dict[str, StreamState]
    trainers: dict[str, TrainerState]
    filtered: dict[str, Kept] = msgspec.field(name="sifted")
    """What filters left of groups."""
    evaluation: EvaluationState
    stages: StageState = msgspec.field(default_factory=StageState)
    anchored_anew: int = 0
    given_up_groups: int = 0
    settings: SettingsTaken | None = None
    learnt: dict[str, Any]
    """What the curator knows."""


class _Format(msgspec.Struct):
    """What of a snapshot is in it whatever its format."""

    format: int


def read_snapshot(plain: bytes) -> LedgerSnapshot:
    """From MessagePack. Raises UnknownLedgerFormat."""
    check_format(msgspec.msgpack.decode(plain, type=_Format).format)
    return msgspec.msgpack.decode(plain, type=LedgerSnapshot)


def unpacked(packed: bytes) -> LedgerSnapshot:
    """From the bodies of its parts. Raises UnknownLedgerFormat."""
    return read_snapshot(zstandard.decompress(packed, max_output_size=_MAX_BYTES))


def check_format(found: int) -> None:
    if found not in READ_FORMATS:
        raise UnknownLedgerFormat(found)


_COUNTS = (
    "next_step", "durable_steps", "trained_steps", "accepted_groups", "fresh_groups", "consumed_samples",
    "replayed_samples", "consumed_tokens", "dropped_groups", "attempt", "world_size",
)  # fmt: skip


def floors(ledger: Ledger) -> tuple[int, int]:
    """The first trajectory, and the first column, that are still needed."""
    return _floor(ledger), _column_floor(ledger)


def take_snapshot(ledger: Ledger, *, learnt: dict[str, Any]) -> LedgerSnapshot:
    return LedgerSnapshot(
        format=FORMAT,
        last_sequence=ledger.last_sequence,
        floor=_floor(ledger),
        issued=ledger.issued,
        next_position=ledger.next_position,
        newest_first=ledger.newest_tasks.start,
        newest_positions=list(ledger.newest_positions),
        streams={name: _stream_state(stream, ledger.stages.staged[name]) for name, stream in ledger.streams.items()},
        trainers={name: _trainer_state(trainer) for name, trainer in ledger.trainers.items()},
        filtered={
            group.group_id: group.kept()
            for trainer in ledger.trainers.values()
            for group in _held(trainer)
            if group.filtered
        },
        evaluation=EvaluationState(
            running=ledger.evaluation.running,
            ended=ledger.evaluation.ended,
            last_lead=ledger.evaluation.last_lead,
            latest=ledger.evaluation.latest,
            best=[(policy, best) for (policy, _), best in ledger.evaluation.best.items()],
        ),
        stages=StageState(
            last_sequence=ledger.stages.last_sequence,
            floor=_column_floor(ledger),
            places=dict(ledger.stages.places),
            done=dict(ledger.stages.answered.done),
            failed=dict(ledger.stages.answered.failed),
        ),
        anchored_anew=ledger.anchored_anew,
        given_up_groups=ledger.given_up_groups,
        settings=ledger.settings,
        learnt=learnt,
    )


class Restoration:
    """Brings an empty ledger to where a snapshot was taken, from the snapshot and the headers since its floors."""

    def __init__(
        self, ledger: Ledger, snapshot: LedgerSnapshot, columns: Sequence[tuple[int, ColumnHeader]] = ()
    ) -> None:
        """`columns` are those up to where the snapshot knows them, in their order."""
        self._columns: dict[tuple[str, str], list[tuple[int, ColumnHeader]]] = defaultdict(list)
        for sequence, header in columns:
            self._columns[header.policy, header.group_id].append((sequence, header))
        self._ledger = ledger
        self._snapshot = snapshot
        self._partials: dict[str, PartialGroup] = {}
        self._policy: dict[str, str] = {}
        self._needed = _group_ids(snapshot)
        self.gone: str | None = None
        """What of the groups that the snapshot speaks of has been lost; the others are restored."""
        ledger.issued = snapshot.issued
        ledger.next_position = snapshot.next_position
        ledger.newest_tasks = range(snapshot.newest_first, snapshot.issued)
        ledger.newest_positions = snapshot.newest_positions
        ledger.apply(
            StreamsRouted(
                routes={name: tuple(one.buffers) for name, one in snapshot.trainers.items()},
                labels={name: one.labels for name, one in snapshot.trainers.items() if one.labels},
            )
        )
        ledger.settings = snapshot.settings
        for name, state in snapshot.streams.items():
            _stream_of(ledger, name).ended.restore(state.ended, below=state.settled_below)
        ledger.evaluation.running = snapshot.evaluation.running
        ledger.evaluation.ended = snapshot.evaluation.ended
        ledger.evaluation.last_lead = snapshot.evaluation.last_lead
        ledger.evaluation.latest = snapshot.evaluation.latest
        ledger.evaluation.best = {(policy, best.benchmark): best for policy, best in snapshot.evaluation.best}

    def arrived(self, sequence: int, trajectory_id: str, header: TrajectoryHeader) -> None:
        """A header up to where the snapshot knows them."""
        if header.group_id not in self._needed or header.policy not in self._ledger.streams:
            self._ledger.arrived(sequence, trajectory_id, header)
            return
        partial = self._partials.setdefault(
            header.group_id,
            PartialGroup(header, first_sequence=sequence),
        )
        self._policy[header.group_id] = header.policy
        partial.add(header, Sample.of(sequence, trajectory_id, header))

    def finish(self) -> None:
        """All headers up to there have come."""
        ledger, snapshot = self._ledger, self._snapshot
        for name, stream_state in snapshot.streams.items():
            stream = _stream_of(ledger, name)
            stream.unfiltered = {group.group_id: group for group in self._there(stream_state.unfiltered)}
            for group in self._there(stream_state.staged, self._arrived):
                self._restage(stream, group)
            stream.finished_groups = stream_state.finished_groups
            stream.produced_tokens = stream_state.produced_tokens
            stream.filtered_groups = stream_state.filtered_groups
            stream.failed_groups = stream_state.failed_groups
            stream.empty_groups = stream_state.empty_groups
            stream.written_off_groups = stream_state.written_off_groups
            stream.duplicates = stream_state.duplicates
        for name, trainer_state in snapshot.trainers.items():
            self._restore_trainer(ledger.trainers[name], trainer_state)
        for (_, group_id), columns in self._columns.items():
            if parse_evaluation_group(group_id) is not None:
                for sequence, header in columns:
                    ledger.column_arrived(sequence, header)
        ledger.last_sequence = snapshot.last_sequence
        ledger.anchored_anew, ledger.given_up_groups = snapshot.anchored_anew, snapshot.given_up_groups
        ledger.stages.last_sequence = snapshot.stages.last_sequence
        ledger.stages.places = snapshot.stages.places
        answered = ledger.stages.answered
        for counts, known in ((answered.done, snapshot.stages.done), (answered.failed, snapshot.stages.failed)):
            counts.clear()
            counts.update(known)

    def _restage(self, stream: StreamBooks, group: Group) -> None:
        """A group that waited for stages."""
        if not self._ledger.stages.takes(group):
            stream.unfiltered[group.group_id] = group  # the manifest has no such stages any more
            return
        self._ledger.stages.begin(group)
        for sequence, header in self._columns[stream.policy, group.group_id]:
            self._ledger.column_arrived(sequence, header)

    def _restore_trainer(self, trainer: TrainerBooks, state: TrainerState) -> None:
        for group_ids in state.buffers.values():
            for group in self._there(group_ids):
                trainer.add(group)
        for group_id, uses, last_step in state.pool:
            for group in self._there([group_id]):
                trainer.pool.put(UsedGroup(group, uses, last_step))
        trainer.granted = {
            step: tuple(
                tuple(Allotment(group, uses) for group_id, uses in portion for group in self._there([group_id]))
                for portion in portions
            )
            for step, portions in state.granted.items()
        }
        times = state.times | {
            step: (len(ranks), sum(wait for wait, _ in ranks.values()), sum(took for _, took in ranks.values()))
            for step, ranks in state.rank_times.items()
        }
        trainer.times.by_step = {
            step: StepTime(ranks=ranks, wait_s=wait_s, step_s=step_s) for step, (ranks, wait_s, step_s) in times.items()
        }
        trainer.rewards.extend(state.rewards)
        trainer.finished = state.finished
        for name in _COUNTS:
            setattr(trainer, name, state.counts[name])

    def _there(self, group_ids: Iterable[str], find: Callable[[str], Group] | None = None) -> Iterator[Group]:
        """Those that have not been lost."""
        for group_id in group_ids:
            try:
                yield (find or self._group)(group_id)
            except RowsGone as error:
                self.gone = str(error)

    def _group(self, group_id: str) -> Group:
        """A group that had all that it waited for."""
        group = self._arrived(group_id)
        staged = StagedGroup(group, self._ledger.stages.graph)
        for sequence, header in self._columns.get((group.policy, group_id), ()):
            if self._ledger.stages.graph.applies(header.stage, group.policy):
                staged.add(sequence, header)
        if staged.first_column is not None:
            group = staged.finished()
        kept = self._snapshot.filtered.get(group_id)
        return group if kept is None else group.reduced_to(kept)

    def _arrived(self, group_id: str) -> Group:
        partial = self._partials.get(group_id)
        group = None
        if partial is not None and len(partial.closed) == self._ledger.group_size:
            group = Group.of(group_id, partial, policy=self._policy[group_id])
        if not isinstance(group, Group):
            raise RowsGone(f"group {group_id} is in the ledger's snapshot and not whole in the trajectory stream")
        return group


def _stream_of(ledger: Ledger, name: str) -> StreamBooks:
    if name not in ledger.streams:
        raise LedgerError(f"the ledger speaks of policy {name!r}, which the job does not have")
    return ledger.streams[name]


def _stream_state(stream: StreamBooks, staged: Iterable[str]) -> StreamState:
    return StreamState(
        staged=list(staged),
        ended=stream.ended.state(),
        unfiltered=list(stream.unfiltered),
        finished_groups=stream.finished_groups,
        produced_tokens=stream.produced_tokens,
        filtered_groups=stream.filtered_groups,
        failed_groups=stream.failed_groups,
        empty_groups=stream.empty_groups,
        written_off_groups=stream.written_off_groups,
        settled_below=stream.ended.below,
        duplicates=stream.duplicates,
    )


def _trainer_state(trainer: TrainerBooks) -> TrainerState:
    return TrainerState(
        buffers={stream: [group.group_id for group in buffer] for stream, buffer in trainer.buffers.items()},
        labels={stream: tuple(sorted(labels)) for stream, labels in trainer.labels.items()},
        pool=[(used.group.group_id, used.uses, used.last_step) for used in trainer.pool],
        granted={
            step: [[(allotment.group.group_id, allotment.uses) for allotment in portion] for portion in portions]
            for step, portions in trainer.granted.items()
        },
        times={step: (time.ranks, time.wait_s, time.step_s) for step, time in trainer.times.by_step.items()},
        rewards=list(trainer.rewards),
        counts={name: getattr(trainer, name) for name in _COUNTS},
        finished=trainer.finished,
    )


def _held(trainer: TrainerBooks) -> Iterator[Group]:
    """Groups of this trainer whose trajectories may still be asked for."""
    yield from chain.from_iterable(trainer.buffers.values())
    yield from (used.group for used in trainer.pool)
    yield from (allotment.group for step in trainer.granted for allotment in trainer.allotments(step))


def _floor(ledger: Ledger) -> int:
    streams = ledger.streams.values()
    staged = (one.group for own in ledger.stages.staged.values() for one in own.values())
    groups = chain(staged, _past_stages(ledger))
    evaluated = ledger.evaluation.first_sequence
    sequences = chain(
        () if evaluated is None else (evaluated,),
        (partial.first_sequence for stream in streams for partial in stream.arriving.values()),
        (group.first_sequence for group in groups),
    )
    return min(sequences, default=ledger.last_sequence + 1)


def _past_stages(ledger: Ledger) -> Iterator[Group]:
    """Groups that have all that they waited for."""
    for stream in ledger.streams.values():
        yield from stream.unfiltered.values()
    for trainer in ledger.trainers.values():
        yield from _held(trainer)


def _column_floor(ledger: Ledger) -> int:
    staged = (one.first_column for own in ledger.stages.staged.values() for one in own.values())
    trained = (group.first_column for group in _past_stages(ledger))
    sequences = chain(staged, trained, (ledger.evaluation.first_column,))
    return min((one for one in sequences if one is not None), default=ledger.stages.last_sequence + 1)


def _group_ids(snapshot: LedgerSnapshot) -> frozenset[str]:
    return frozenset(
        chain(
            (group_id for state in snapshot.streams.values() for group_id in (*state.unfiltered, *state.staged)),
            (group_id for state in snapshot.trainers.values() for ids in state.buffers.values() for group_id in ids),
            (group_id for state in snapshot.trainers.values() for group_id, _, _ in state.pool),
            (
                group_id
                for state in snapshot.trainers.values()
                for portions in state.granted.values()
                for portion in portions
                for group_id, _ in portion
            ),
        )
    )
