"""What is known of evaluations: the round that is under way, and how the last ones ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from trimtab.api.stage import Stage
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.episode_rows import EpisodeRows
from trimtab.dataflow.ledger.groups import Group, Sample
from trimtab.dataflow.ledger.records import EvaluationEnded, EvaluationScore, EvaluationStarted
from trimtab.dataflow.ledger.stage_books import Answered, StageBooks
from trimtab.dataflow.ledger.stage_graph import StageGraph, deciding_rewards
from trimtab.dataflow.ledger.staged_group import ColumnArrival
from trimtab.fabric.wire.best_versions import BestVersion
from trimtab.fabric.wire.column import ColumnHeader
from trimtab.fabric.wire.header import TrajectoryHeader

_TASK = re.compile(r"e(0|[1-9][0-9]{0,17})\.([a-z0-9-]+)\.(0|[1-9][0-9]{0,17})")
_GROUP = re.compile(rf"{_TASK.pattern}\.([a-z0-9-]+)")
_OVER = frozenset({ColumnArrival.DONE, ColumnArrival.FAILED, ColumnArrival.LEFT_OUT})


def evaluation_task_id(number: int, benchmark: str, prompt: int) -> str:
    return f"e{number}.{benchmark}.{prompt}"


def parse_evaluation_task(task_id: str) -> tuple[int, str, int] | None:
    """Number of the round, benchmark and prompt; None for an id that no task of an evaluation has."""
    found = _TASK.fullmatch(task_id)
    return None if found is None else (int(found[1]), found[2], int(found[3]))


class Place(NamedTuple):
    """What a group of an evaluation is of."""

    number: int
    """Of the round."""
    benchmark: str
    prompt: int
    role: str


def parse_evaluation_group(group_id: str) -> Place | None:
    """None for an id that no task of an evaluation can have led to."""
    found = _GROUP.fullmatch(group_id)
    return None if found is None else Place(int(found[1]), found[2], int(found[3]), found[4])


class _Row(NamedTuple):
    """One that has arrived."""

    sequence: int
    trajectory_id: str
    header: TrajectoryHeader


class _Answer(NamedTuple):
    """What is counted of a row."""

    episode: int
    reward: float
    oldest_version: int | None
    newest_version: int | None


@dataclass
class _Tally:
    """One policy on one benchmark in one round."""

    arriving: dict[str, EpisodeRows[_Row]] = field(default_factory=dict)
    staged: set[str] = field(default_factory=set)
    """Groups whose episodes are all closed and that wait for stages."""
    complete: dict[int, set[str]] = field(default_factory=dict)
    """By prompt, the roles whose episodes are all counted."""
    rewards: float = 0.0
    episodes: int = 0
    failed: int = 0
    oldest_version: int | None = None
    newest_version: int | None = None

    def add(self, place: Place, row: _Row) -> EpisodeRows[_Row] | None:
        """All rows of the group, if this was the last of them."""
        header = row.header
        if place.role in self.complete.get(place.prompt, ()) or header.group_id in self.staged:
            return None
        group = self.arriving.setdefault(header.group_id, EpisodeRows())
        group.add(header, row)
        if len(group.closed) < header.group_size:
            return None
        return self.arriving.pop(header.group_id)

    def end(self, place: Place, answers: Iterable[_Answer], *, failed: int) -> None:
        """An episode counts once, with the mean of its rows' rewards; one without rows of the role does not count."""
        self.complete.setdefault(place.prompt, set()).add(place.role)
        self.failed += failed
        rewards: dict[int, list[float]] = {}
        for answer in answers:
            rewards.setdefault(answer.episode, []).append(answer.reward)
            if answer.oldest_version is not None and answer.newest_version is not None:
                self.oldest_version = min((answer.oldest_version, *_known(self.oldest_version)))
                self.newest_version = max((answer.newest_version, *_known(self.newest_version)))
        self.rewards += sum(sum(own) / len(own) for own in rewards.values())
        self.episodes += len(rewards)


class EvaluationBooks:
    """Changed by the ledger alone. One round at a time; its samples are counted as their headers come in, and where
    stages say what rows are worth, when these have.
    """

    def __init__(
        self, groups_per_task: Mapping[str, int], stages: Sequence[Stage] = (), *, answered: Answered | None = None
    ) -> None:
        self._groups_per_task = groups_per_task
        self.stages = StageBooks(
            StageGraph(deciding_rewards(stages), policies=tuple(groups_per_task)),
            answered=answered,
            is_group=lambda group_id: parse_evaluation_group(group_id) is not None,
        )
        self.running: EvaluationStarted | None = None
        self.ended = 0
        """Rounds that are over: the next has this number."""
        self.last_lead: int | None = None
        """The newest version of any policy when the latest round began."""
        self.latest: EvaluationEnded | None = None
        """The latest round that ended with scores."""
        self.best: dict[tuple[str, str], BestVersion] = {}
        """By policy and benchmark, of all rounds."""
        self._tallies: dict[tuple[int, str, str], _Tally] = {}
        self._first_sequence: dict[int, int] = {}
        self._first_column: dict[int, int] = {}

    def arrived(self, sequence: int, trajectory_id: str, header: TrajectoryHeader) -> Arrival:
        """EVALUATED when a group is counted with it, STAGED when it waits for stages now. In a replay headers come
        before the record that began their round.
        """
        place = self._place(header.group_id, header.policy)
        if place is None or place.benchmark != header.benchmark or place.number < self.ended:
            return Arrival.NOT_FOR_TRAINING
        self._first_sequence.setdefault(place.number, sequence)
        tally = self._of(place, header.policy)
        rows = tally.add(place, _Row(sequence, trajectory_id, header))
        if rows is None:
            return Arrival.NOT_FOR_TRAINING
        if self.stages.graph.of(header.policy) and rows.rows:
            return self._stage(place, header, rows)
        scored = [row.header for row in rows.rows]
        answers = [
            _Answer(one.group_index, one.reward, one.oldest_version, one.newest_version)
            for one in scored
            if one.reward is not None
        ]
        tally.end(place, answers, failed=len(scored) - len(answers))
        return Arrival.EVALUATED

    def _stage(self, place: Place, header: TrajectoryHeader, rows: EpisodeRows[_Row]) -> Arrival:
        """One row that failed spoils its group, as in training: stages are asked about groups that are whole."""
        tally = self._of(place, header.policy)
        group = _group(header, rows)
        if group is None or not self.stages.can_ask(group):
            tally.end(place, (), failed=len(rows.closed) - rows.empty)
            return Arrival.EVALUATED
        tally.staged.add(group.group_id)
        for sequence, column in self.stages.begin(group):
            self.column_arrived(sequence, column)
        return Arrival.STAGED

    def column_arrived(self, sequence: int, header: ColumnHeader) -> ColumnArrival:
        """With DONE and FAILED its group is counted."""
        place = self._place(header.group_id, header.policy)
        if place is None:
            return ColumnArrival.REFUSED
        if place.number < self.ended:
            return ColumnArrival.DUPLICATE
        self._first_column.setdefault(place.number, sequence)
        tally = self._of(place, header.policy)
        arrival = self.stages.arrived(sequence, header, ended=place.role in tally.complete.get(place.prompt, ()))
        if arrival in _OVER:
            group = self.stages.take(header.policy, header.group_id)
            assert group is not None
            tally.staged.discard(header.group_id)
            if arrival is ColumnArrival.FAILED:
                tally.end(place, (), failed=group.episodes)
            else:
                answers = [
                    _Answer(row.index, row.reward, row.oldest_version, row.newest_version) for row in group.samples
                ]
                tally.end(place, answers, failed=0)
        return arrival

    def start(self, record: EvaluationStarted) -> None:
        self.running = record
        self.last_lead = max(record.versions.values())

    def end(self, record: EvaluationEnded) -> None:
        self.running = None
        self.ended = record.number + 1
        if record.scores:
            self.latest = record
        for score in record.scores:
            self._note_best(score)
        self._tallies = {key: tally for key, tally in self._tallies.items() if key[0] >= self.ended}
        self._first_sequence = self._still(self._first_sequence)
        self._first_column = self._still(self._first_column)
        for policy, staged in self.stages.staged.items():
            for group_id in list(staged):
                place = parse_evaluation_group(group_id)
                if place is not None and place.number < self.ended:
                    self.stages.take(policy, group_id)

    def _note_best(self, score: EvaluationScore) -> None:
        if score.score is None:
            return
        key = (score.policy, score.benchmark)
        if key not in self.best or score.score >= self.best[key].score:
            self.best[key] = BestVersion(benchmark=score.benchmark, version=score.version, score=score.score)

    def is_done(self, benchmark: str, prompt: int) -> bool:
        """Whether all samples of a prompt of the running round are here."""
        return all(
            len(self._tally(benchmark, policy).complete.get(prompt, ())) >= groups
            for policy, groups in self._groups_per_task.items()
        )

    def score(self) -> tuple[EvaluationScore, ...]:
        """How the running round stands."""
        assert self.running is not None
        return tuple(
            EvaluationScore(
                benchmark=plan.name,
                policy=policy,
                version=self.running.versions[policy],
                score=tally.rewards / tally.episodes if tally.episodes else None,
                episodes=tally.episodes,
                failed=tally.failed,
                oldest_version=tally.oldest_version,
                newest_version=tally.newest_version,
            )
            for plan in self.running.benchmarks
            for policy in self._groups_per_task
            for tally in [self._tally(plan.name, policy)]
        )

    @property
    def first_sequence(self) -> int | None:
        """Of the trajectories that are still counted; None when there are none."""
        return min(self._first_sequence.values(), default=None)

    @property
    def first_column(self) -> int | None:
        """Of the columns about them."""
        return min(self._first_column.values(), default=None)

    def _still(self, first: Mapping[int, int]) -> dict[int, int]:
        return {number: sequence for number, sequence in first.items() if number >= self.ended}

    def _place(self, group_id: str, policy: str) -> Place | None:
        return parse_evaluation_group(group_id) if policy in self._groups_per_task else None

    def _of(self, place: Place, policy: str) -> _Tally:
        return self._tallies.setdefault((place.number, place.benchmark, policy), _Tally())

    def _tally(self, benchmark: str, policy: str) -> _Tally:
        assert self.running is not None
        return self._tallies.setdefault((self.running.number, benchmark, policy), _Tally())


def _group(header: TrajectoryHeader, rows: EpisodeRows[_Row]) -> Group | None:
    """As stages are asked about it; None when one of its rows failed."""
    samples = [Sample.of(row.sequence, row.trajectory_id, row.header) for row in rows.rows]
    whole = [sample for sample in samples if sample is not None]
    if len(whole) < len(samples):
        return None
    whole.sort(key=attrgetter("index"))
    return Group(
        group_id=header.group_id,
        policy=header.policy,
        role=header.role,
        prompt_id=header.prompt_id,
        label=header.label,
        samples=tuple(whole),
        episodes=len(rows.closed) - rows.empty,
        oldest_version=min(sample.oldest_version for sample in whole),
        first_sequence=min(sample.sequence for sample in whole),
    )


def _known(version: int | None) -> tuple[int, ...]:
    return () if version is None else (version,)
