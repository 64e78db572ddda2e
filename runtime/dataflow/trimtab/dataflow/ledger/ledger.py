"""The books of a job: a pure state machine over arrived headers and recorded decisions.

Headers come from the streams of trajectories and columns, records from the ledger's own. A restart replays headers
first, those of trajectories before those of columns, then the records: a grant names groups that had arrived before it
was written, so by then all of them are here, with all that stages have said of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from trimtab.api.stage import Stage
from trimtab.dataflow.admission import missing_groups, tasks_for
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.episode_rows import CLOSED, WAITING, Added
from trimtab.dataflow.ledger.errors import LedgerError, RowsGone
from trimtab.dataflow.ledger.evaluation_books import EvaluationBooks, parse_evaluation_group
from trimtab.dataflow.ledger.groups import Group, PartialGroup, Sample
from trimtab.dataflow.ledger.offer import StepOffer
from trimtab.dataflow.ledger.records import (
    EvaluationEnded,
    EvaluationStarted,
    GroupsDropped,
    GroupsFiltered,
    LedgerAnchoredAnew,
    PolicyContinued,
    PolicyFinished,
    Record,
    SettingsTaken,
    StepDurable,
    StepGranted,
    StepTimed,
    StepTrained,
    StreamsRouted,
    TasksIssued,
    TrainerAttempt,
)
from trimtab.dataflow.ledger.stage_books import StageBooks
from trimtab.dataflow.ledger.stage_graph import StageGraph
from trimtab.dataflow.ledger.staged_group import ColumnArrival
from trimtab.dataflow.ledger.stream_books import StreamBooks
from trimtab.dataflow.ledger.task_ids import parse_group_id, task_id
from trimtab.dataflow.ledger.trainer_books import TrainerBooks
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.dataflow.selection.contract import Selection
from trimtab.fabric.wire.column import ColumnHeader
from trimtab.fabric.wire.header import TrajectoryHeader


class Witness(Protocol):
    """Learns how groups end, in the order of the records: a restart tells it the same again. Curators are witnesses."""

    def observe(self, outcome: GroupOutcome) -> None: ...

    def stepped(self, policy: str, step: int) -> None: ...


_TAKEN = frozenset({ColumnArrival.DONE, ColumnArrival.FAILED, ColumnArrival.LEFT_OUT})


class Ledger:
    """State and the questions about it; every change comes in through `arrived`, `column_arrived` or `apply`."""

    def __init__(
        self,
        groups_per_task: Mapping[str, int],
        *,
        selection: Selection,
        group_size: int,
        batch_sizes: Mapping[str, int],
        max_staleness: int,
        window_steps: int,
        seed: int = 0,
        has_filters: bool = False,
        witness: Witness | None = None,
        stages: Sequence[Stage] = (),
    ) -> None:
        """`groups_per_task` has every policy that learns with the number of its roles: each task gives a group for each
        role. `batch_sizes` are episodes in a step of each. With `has_filters`, groups wait for the word of the filters
        before they count as buffered.
        """
        self.streams = {name: StreamBooks(name, groups_per_task=count) for name, count in groups_per_task.items()}
        self.trainers = {
            name: TrainerBooks(name, groups_per_step=batch_sizes[name] // group_size, window_steps=window_steps)
            for name in groups_per_task
        }
        self.stages = StageBooks(StageGraph(stages, policies=tuple(groups_per_task)))
        self.evaluation = EvaluationBooks(groups_per_task, stages, answered=self.stages.answered)
        self.issued = 0
        self.next_position = 0
        """Where the order of prompts goes on."""
        self.newest_positions: Sequence[int] = ()
        """Of the prompts of the newest tasks."""
        self.newest_tasks = range(0)
        """Those of the newest record: all earlier ones were on the queue before it was written."""
        self.last_sequence = 0
        """Of the trajectories that have arrived."""
        self.settings: SettingsTaken | None = None
        """What the manifest said last; None for a ledger of a version that did not write it down."""
        self.anchored_anew = 0
        """How often this ledger and the checkpoints of a policy did not meet."""
        self.given_up_groups = 0
        """Because of that, as far as they were known."""
        self._selection = selection
        self.group_size = group_size
        self._max_staleness = max_staleness
        self._seed = seed
        self.has_filters = has_filters
        self._holds = has_filters
        self._witness = witness
        self._takers: dict[str, list[TrainerBooks]] = {}
        self._route({name: (name,) for name in self.trainers}, {})

    def begin_replay(self) -> None:
        """From here on the records tell what became of every group, whether or not there are filters now."""
        self._holds = True

    def end_replay(self) -> None:
        self._holds = self.has_filters
        if not self.has_filters:
            for stream in self.streams.values():
                for group_id in tuple(stream.unfiltered):
                    self._surface(stream, group_id)

    def arrived(self, sequence: int, trajectory_id: str, header: TrajectoryHeader) -> Arrival:
        self.last_sequence = max(self.last_sequence, sequence)
        stream = self.streams.get(header.policy)
        if header.benchmark is not None:
            return self.evaluation.arrived(sequence, trajectory_id, header)
        if stream is None:
            return Arrival.NOT_FOR_TRAINING
        if header.group_size != self.group_size:
            return Arrival.REFUSED
        partial = stream.arriving.get(header.group_id)
        if partial is None:
            # Most rows find their group begun, and need not be looked at so closely.
            place = parse_group_id(header.group_id)
            if place is None or header.task_id != task_id(place[0]):
                return Arrival.REFUSED
            if header.group_id in stream.ended:
                stream.duplicates += 1
                return Arrival.DUPLICATE
            partial = PartialGroup(header, first_sequence=sequence)
            stream.arriving[header.group_id] = partial
        added = partial.add(header, Sample.of(sequence, trajectory_id, header))
        if added is WAITING:
            return Arrival.NEW
        if added is not CLOSED:
            return self._not_wanted(stream, added)
        if len(partial.closed) < self.group_size:
            return Arrival.NEW
        group = stream.end(header.group_id)
        if isinstance(group, Arrival):
            return group
        if self.stages.takes(group):
            return self._stage(stream, group)
        self._come_out(stream, group)
        return Arrival.COMPLETED

    def _stage(self, stream: StreamBooks, group: Group) -> Arrival:
        if not self.stages.can_ask(group):
            stream.failed_groups += 1
            return Arrival.FAILED
        for sequence, header in self.stages.begin(group):
            self.column_arrived(sequence, header)
        return Arrival.STAGED

    def _come_out(self, stream: StreamBooks, group: Group) -> None:
        """All is there that the filters are asked with."""
        stream.unfiltered[group.group_id] = group
        if not self._holds:
            self._surface(stream, group.group_id)

    def column_arrived(self, sequence: int, header: ColumnHeader) -> ColumnArrival:
        stream = self.streams.get(header.policy)
        if stream is None:
            return ColumnArrival.REFUSED
        if parse_evaluation_group(header.group_id) is not None:
            self.stages.last_sequence = max(self.stages.last_sequence, sequence)
            return self.evaluation.column_arrived(sequence, header)
        arrival = self.stages.arrived(sequence, header, ended=header.group_id in stream.ended)
        if arrival not in _TAKEN:
            return arrival
        group = self.stages.take(header.policy, header.group_id)
        assert group is not None
        if arrival is ColumnArrival.DONE:
            self._come_out(stream, group)
        elif arrival is ColumnArrival.FAILED:
            stream.failed_groups += 1
        else:
            stream.filtered_groups += 1
        return arrival

    @property
    def asking(self) -> tuple[StageBooks, ...]:
        """All that stages are asked from."""
        return self.stages, self.evaluation.stages

    def waits_for_stages(self, policy: str, group_id: str) -> bool:
        return any(group_id in books.staged.get(policy, ()) for books in self.asking)

    def waiting_for(self, stage: str) -> int:
        """Groups that a stage has been asked about, or is about to be, to be trained on or evaluated."""
        return sum(books.waiting(stage) for books in self.asking)

    def _not_wanted(self, stream: StreamBooks, added: Added) -> Arrival:
        if added is Added.REFUSED:
            return Arrival.REFUSED
        stream.duplicates += 1
        return Arrival.DUPLICATE

    def apply(self, record: Record) -> None:
        match record:
            case TasksIssued():
                self._issue(record)
            case StreamsRouted():
                self._route(record.routes, record.labels)
            case SettingsTaken():
                self.settings = record
            case GroupsFiltered():
                self._filter(self._stream(record.policy), record)
            case LedgerAnchoredAnew():
                self._anchor(self._trainer(record.policy), record)
            case EvaluationStarted():
                self._check_round(record)
                self.evaluation.start(record)
            case EvaluationEnded():
                self._check_round(record)
                self.evaluation.end(record)
            case _:
                self._step(self._trainer(record.policy), record)

    def _issue(self, record: TasksIssued) -> None:
        if record.first != self.issued:
            raise LedgerError(f"tasks issued from {record.first} where {self.issued} was due")
        self.issued += record.count
        self.newest_tasks = range(record.first, self.issued)
        self.newest_positions = record.positions or range(self.next_position, self.next_position + record.count)
        self.next_position = self.next_position + record.count if record.next_position is None else record.next_position
        settled = min((stream.settled_tasks for stream in self.streams.values() if stream.groups_per_task), default=0)
        self.stages.note_places(self.newest_tasks, self.newest_positions, settled=settled)

    def _anchor(self, trainer: TrainerBooks, record: LedgerAnchoredAnew) -> None:
        if record.issued < self.issued:
            raise LedgerError(f"anchored at task {record.issued} where {self.issued} was due")
        self.issued = record.issued
        self.newest_tasks, self.newest_positions = range(record.issued, record.issued), ()
        self.stages.give_up(issued=record.issued)
        for stream in self.streams.values():
            stream.write_off(record.issued)
        for other in self.trainers.values():
            other.give_up_waiting(issued=record.issued)
        trainer.anchor(record.step)
        self.anchored_anew += 1
        self.given_up_groups += record.given_up

    def unused_groups(self) -> int:
        """Asked for, and not in any step yet."""
        under_way = sum(self.under_way(stream) for stream in self.streams)
        return max(0, under_way) + sum(trainer.buffered for trainer in self.trainers.values())

    def _route(self, routes: Mapping[str, Sequence[str]], labels: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        for name, trainer in self.trainers.items():
            trainer.route(routes.get(name, (name,)), labels.get(name, {}))
        self._takers = {}
        for stream in self.streams:
            takers = [trainer for trainer in self.trainers.values() if stream in trainer.buffers]
            # The policy's own trainer first: curators hear of a group when the first of these is done with it.
            self._takers[stream] = [one for one in takers if one.policy == stream] + [
                one for one in takers if one.policy != stream
            ]

    def _check_round(self, record: EvaluationStarted | EvaluationEnded) -> None:
        if record.number != self.evaluation.ended:
            raise LedgerError(f"evaluation {record.number} where {self.evaluation.ended} was due")

    def _filter(self, stream: StreamBooks, record: GroupsFiltered) -> None:
        named = (*record.kept, *(reduced.group_id for reduced in record.reduced), *record.left_out)
        if len(set(named)) != len(named):
            raise LedgerError(f"{stream.policy}: a group was filtered twice")
        for group_id in named:
            self._release(stream, group_id)
            if group_id not in stream.unfiltered:
                raise RowsGone(f"{stream.policy}: group {group_id} was filtered and is not there")
        # All at once and whole: a curator that learnt only of those left out would take them for the rule.
        for group_id in named:
            self._observe(stream.unfiltered[group_id])
        for group_id in record.kept:
            self._give(msgspec.structs.replace(stream.unfiltered.pop(group_id), filtered=True))
        for reduced in record.reduced:
            self._give(stream.unfiltered.pop(reduced.group_id).reduced_to(reduced.kept))
        for group_id in record.left_out:
            del stream.unfiltered[group_id]
        stream.filtered_groups += len(record.left_out)

    def _step(self, trainer: TrainerBooks, record: Record) -> None:
        match record:
            case StepGranted():
                if record.step != trainer.next_step:
                    raise LedgerError(f"{trainer.policy}: step {record.step} granted where {trainer.next_step} was due")
                self._check_waiting(trainer, (*record.groups, *record.dropped), step=record.step)
                _check_used(trainer, record)
                self._tell(trainer, (*record.groups, *record.dropped))
                trainer.grant(record)
                trainer.drop(record.dropped)
                if self._witness is not None and record.last:
                    self._witness.stepped(trainer.policy, record.step)
            case GroupsDropped():
                self._check_waiting(trainer, record.dropped, step=record.step)
                self._tell(trainer, record.dropped)
                trainer.drop(record.dropped)
            case StepTimed():
                trainer.time(record)
            case StepTrained():
                trainer.trained(record.step)
            case StepDurable():
                trainer.durable(record.step)
            case TrainerAttempt():
                trainer.attempt, trainer.world_size = record.attempt, record.world_size
            case PolicyFinished():
                trainer.finish(record.reason)
            case PolicyContinued():
                trainer.finished = None

    def running_groups(self, stream: str) -> int:
        """Groups asked for and not at their end."""
        return self.streams[stream].running(self.issued)

    def capacity_tasks(self, needed: Callable[[int], int] = lambda missing: missing) -> int:
        """Tasks that may be issued now. Every task is work for every policy, so the tightest that still learns decides;
        one that has finished no longer counts, or it would stop the others. Nothing is made that one of them could only
        give up: a policy with half the batch takes two steps where another takes one. `needed` says how many groups it
        takes to fill so many places, where a filter will leave some out.
        """
        return min(
            (self._capacity(trainer, needed) for trainer in self.trainers.values() if trainer.finished is None),
            default=0,
        )

    def _capacity(self, trainer: TrainerBooks, needed: Callable[[int], int]) -> int:
        """Of a trainer's streams the neediest decides: with fewer tasks it would wait for that one for ever."""
        steps = self._max_staleness + 1 + trainer.trained_steps - trainer.next_step
        if steps <= 0:
            return 0
        offer = self._offer(trainer)
        return max(
            (
                tasks_for(
                    missing_groups(
                        wanted=wanted,
                        buffered=len(trainer.buffers[name]),
                        running=self.under_way(name),
                        needed=needed,
                    ),
                    groups_per_task=self.streams[name].groups_per_task,
                    idle=self.under_way(name) <= 0,
                )
                for name, wanted in self._selection.needs(offer, steps=steps).items()
                if name in trainer.buffers
            ),
            default=0,
        )

    def under_way(self, stream: str) -> int:
        """Groups that may still come to the buffers without another task."""
        return self.running_groups(stream) + self.stages.count(stream) + len(self.streams[stream].unfiltered)

    def can_grant(self, policy: str) -> bool:
        return self._selection.choose(self._offer(self.trainers[policy])) is not None

    def deciders(self, stream: str, *, besides: Container[str]) -> list[str]:
        """Of the trainers that take a stream, those for which `propose` would have something to say."""
        names = [trainer.policy for trainer in self._takers[stream] if trainer.finished is None]
        return [name for name in names if name not in besides and self.can_decide(name)]

    def can_decide(self, policy: str) -> bool:
        """Whether `propose` would have something to say."""
        return bool(self._offer(self.trainers[policy]).stale()) or self.can_grant(policy)

    def propose(self, policy: str, *, now: float, portions: int = 1) -> StepGranted | GroupsDropped | None:
        """The next step's groups if there are enough, or of as many portions one that there are enough for; else the
        groups to give up: to be recorded first and applied then.
        """
        offer = self._offer(self.trainers[policy])
        choice = self._selection.choose(offer)
        if choice is None and portions > 1:
            offer = self._offer(self.trainers[policy], portions=portions)
            choice = self._selection.choose(offer)
        dropped = offer.stale()
        if choice is not None:
            return StepGranted(
                policy=policy,
                step=offer.step,
                groups=tuple(choice.fresh),
                replayed=tuple(choice.replayed),
                dropped=dropped,
                pooled=choice.keep,
                retired=tuple(choice.retired),
                last=offer.filled + offer.places >= offer.batch,
                granted_at=now,
            )
        if dropped:
            # They hold room that admission would give to fresh groups: without this, enough of them stop the job.
            return GroupsDropped(policy=policy, step=offer.step, dropped=dropped)
        return None

    def _offer(self, trainer: TrainerBooks, *, portions: int = 1) -> StepOffer:
        """A sample is compared with the version that trains it, and one of another policy with that policy's newest."""
        versions = {name: other.trained_steps for name, other in self.trainers.items()}
        versions[trainer.policy] = trainer.next_step
        batch = trainer.groups_per_step
        portion = -(-batch // portions)
        return StepOffer(
            books=trainer,
            batch=batch,
            # A batch that was made smaller in the midst of a step may be full already.
            places=max(0, min(portion, batch - trainer.filled)),
            seed=self._seed,
            max_staleness=self._max_staleness,
            versions=versions,
        )

    def _surface(self, stream: StreamBooks, group_id: str) -> None:
        """No filter was asked about the group: the manifest has none, or had none at the time."""
        self._give(stream.unfiltered.pop(group_id))

    def _release(self, stream: StreamBooks, group_id: str) -> None:
        """A record speaks of the group: the manifest had no such stages at the time."""
        group = self.stages.take(stream.policy, group_id)
        if group is not None:
            stream.unfiltered[group_id] = group

    def _give(self, group: Group) -> None:
        takers = self._takers_of(group)
        for trainer in takers:
            if trainer.finished is None:
                trainer.add(group)
        if not takers and not group.filtered:
            # Nobody will be done with it later, and a curator is told of every group.
            self._observe(group)

    def _takers_of(self, group: Group) -> list[TrainerBooks]:
        return [trainer for trainer in self._takers[group.policy] if trainer.takes(group)]

    def _check_waiting(self, trainer: TrainerBooks, group_ids: tuple[str, ...], *, step: int) -> None:
        if len(set(group_ids)) != len(group_ids):
            raise LedgerError(f"{trainer.policy}: step {step} takes a group twice")
        for group_id in group_ids:
            if trainer.waiting_group(group_id) is None:
                for name in trainer.buffers:
                    self._release(self.streams[name], group_id)
                    if group_id in self.streams[name].unfiltered:
                        self._surface(self.streams[name], group_id)
            if trainer.waiting_group(group_id) is None:
                raise RowsGone(f"{trainer.policy}: step {step} takes group {group_id}, which is not in the buffer")

    def _tell(self, trainer: TrainerBooks, group_ids: Iterable[str]) -> None:
        for group_id in group_ids:
            group = trainer.waiting_group(group_id)
            if group is not None and not group.filtered and self._takers_of(group)[0] is trainer:
                self._observe(group)

    def _observe(self, group: Group) -> None:
        if self._witness is not None:
            self._witness.observe(group.outcome())

    def _stream(self, policy: str) -> StreamBooks:
        if policy not in self.streams:
            raise LedgerError(f"the ledger speaks of policy {policy!r}, which the job does not have")
        return self.streams[policy]

    def _trainer(self, policy: str) -> TrainerBooks:
        return self.trainers[self._stream(policy).policy]


def _check_used(trainer: TrainerBooks, record: StepGranted) -> None:
    if len(set(record.replayed)) != len(record.replayed):
        raise LedgerError(f"{trainer.policy}: step {record.step} replays a group twice")
    for group_id in (*record.replayed, *record.retired):
        if group_id not in trainer.pool:
            raise LedgerError(
                f"{trainer.policy}: step {record.step} replays group {group_id}, which is not in the pool"
            )
