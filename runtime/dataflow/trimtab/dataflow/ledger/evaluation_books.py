"""What is known of evaluations: the round that is under way, and how the last ones ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trimtab.dataflow.ledger.episode_rows import EpisodeRows
from trimtab.dataflow.ledger.records import EvaluationEnded, EvaluationScore, EvaluationStarted
from trimtab.fabric.wire.header import TrajectoryHeader

_GROUP = re.compile(r"e(0|[1-9][0-9]{0,17})\.([a-z0-9-]+)\.(0|[1-9][0-9]{0,17})\.([a-z0-9-]+)")


def evaluation_task_id(number: int, benchmark: str, prompt: int) -> str:
    return f"e{number}.{benchmark}.{prompt}"


@dataclass
class _Tally:
    """One policy on one benchmark in one round."""

    arriving: dict[str, EpisodeRows[TrajectoryHeader]] = field(default_factory=dict)
    complete: dict[int, set[str]] = field(default_factory=dict)
    """By prompt, the roles whose episodes are all closed."""
    rewards: float = 0.0
    episodes: int = 0
    failed: int = 0
    oldest_version: int | None = None
    newest_version: int | None = None

    def add(self, prompt: int, role: str, header: TrajectoryHeader) -> bool:
        """Whether this was the last row of a group."""
        if role in self.complete.get(prompt, ()):
            return False
        group = self.arriving.setdefault(header.group_id, EpisodeRows())
        group.add(header, header)
        if len(group.closed) < header.group_size:
            return False
        del self.arriving[header.group_id]
        self.complete.setdefault(prompt, set()).add(role)
        self._count(group.rows)
        return True

    def _count(self, rows: Iterable[TrajectoryHeader]) -> None:
        """An episode counts once, with the mean of its rows' rewards; one without rows of the role does not count."""
        rewards: dict[int, list[float]] = {}
        for row in rows:
            if row.reward is None:
                self.failed += 1
            else:
                rewards.setdefault(row.group_index, []).append(row.reward)
            if row.oldest_version is not None and row.newest_version is not None:
                self.oldest_version = min((row.oldest_version, *_known(self.oldest_version)))
                self.newest_version = max((row.newest_version, *_known(self.newest_version)))
        self.rewards += sum(sum(own) / len(own) for own in rewards.values())
        self.episodes += len(rewards)


class EvaluationBooks:
    """Changed by the ledger alone. One round at a time; its samples are counted as their headers come in."""

    def __init__(self, groups_per_task: Mapping[str, int]) -> None:
        self._groups_per_task = groups_per_task
        self.running: EvaluationStarted | None = None
        self.ended = 0
        """Rounds that are over: the next has this number."""
        self.last_lead: int | None = None
        """The newest version of any policy when the latest round began."""
        self.latest: EvaluationEnded | None = None
        """The latest round that ended with scores."""
        self._tallies: dict[tuple[int, str, str], _Tally] = {}
        self._first_sequence: dict[int, int] = {}

    def arrived(self, sequence: int, header: TrajectoryHeader) -> bool:
        """Whether a group is complete with it. In a replay headers come before the record that began their round."""
        place = _GROUP.fullmatch(header.group_id)
        if place is None or header.policy not in self._groups_per_task or place[2] != header.benchmark:
            return False
        number = int(place[1])
        if number < self.ended:
            return False
        self._first_sequence.setdefault(number, sequence)
        tally = self._tallies.setdefault((number, place[2], header.policy), _Tally())
        return tally.add(int(place[3]), place[4], header)

    def start(self, record: EvaluationStarted) -> None:
        self.running = record
        self.last_lead = max(record.versions.values())

    def end(self, record: EvaluationEnded) -> None:
        self.running = None
        self.ended = record.number + 1
        if record.scores:
            self.latest = record
        self._tallies = {key: tally for key, tally in self._tallies.items() if key[0] >= self.ended}
        self._first_sequence = {
            number: sequence for number, sequence in self._first_sequence.items() if number >= self.ended
        }

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

    def _tally(self, benchmark: str, policy: str) -> _Tally:
        assert self.running is not None
        return self._tallies.setdefault((self.running.number, benchmark, policy), _Tally())


def _known(version: int | None) -> tuple[int, ...]:
    return () if version is None else (version,)
