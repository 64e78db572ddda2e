"""The records of a chronicle put together: series by policy, the fleet, decisions, and a clock that stops between runs.

What is heard twice counts once: a watch that begins anew hears the latest of everything again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from trimtab.cli.chronicle.records import (
    Began,
    Died,
    Ended,
    Fleet,
    Measured,
    Record,
    Rescaled,
    Score,
    Step,
    Version,
    Window,
)
from trimtab.cli.chronicle.spending import NOTHING, Spending

_RATE_OVER = 5


@dataclass
class PolicyStory:
    _steps: dict[int, Step] = field(default_factory=dict)
    _windows: dict[int, Window] = field(default_factory=dict)
    _versions: dict[tuple[int, int], Version] = field(default_factory=dict)
    _scores: dict[tuple[str, int], Score] = field(default_factory=dict)
    _measured: dict[int, Measured] = field(default_factory=dict)

    def add(self, record: Step | Window | Version | Score | Measured) -> None:
        match record:
            case Measured():
                self._measured[record.step] = record
            case Step():
                self._steps[record.step] = record
            case Window():
                self._windows[record.last_step] = record
            case Version():
                self._versions[record.epoch, record.version] = record
            case Score():
                self._scores[record.benchmark, record.version] = record

    @property
    def steps(self) -> list[Step]:
        return [self._steps[number] for number in sorted(self._steps)]

    @property
    def measured(self) -> list[Measured]:
        """What the trainer said of steps, not of every one where they are short."""
        return [self._measured[number] for number in sorted(self._measured)]

    @property
    def windows(self) -> list[Window]:
        return [self._windows[number] for number in sorted(self._windows)]

    @property
    def versions(self) -> list[Version]:
        return [self._versions[place] for place in sorted(self._versions)]

    @property
    def scores(self) -> dict[str, list[Score]]:
        """By benchmark, without the rounds in which every episode failed."""
        found: defaultdict[str, list[Score]] = defaultdict(list)
        for benchmark, version in sorted(self._scores):
            if (score := self._scores[benchmark, version]).score is not None:
                found[benchmark].append(score)
        return dict(found)

    @property
    def newest_scores(self) -> list[Score]:
        """One for each benchmark, also one in which every episode failed."""
        return list(
            {benchmark: self._scores[benchmark, version] for benchmark, version in sorted(self._scores)}.values()
        )

    @property
    def full_size(self) -> int | None:
        """Bytes of a full copy, which is what every version would have without deltas. The largest of those that stand
        alone: the first of a resumed trainer is only a note that it goes on from a version that is there.
        """
        return max((version.size for version in self.versions if version.base is None), default=None)

    @property
    def deltas(self) -> list[Version]:
        return [version for version in self.versions if version.base is not None]


@dataclass
class Story:
    began: Began | None = None
    """Of the latest run."""
    policies: dict[str, PolicyStory] = field(default_factory=dict)
    fleet: list[Fleet] = field(default_factory=list)
    decisions: list[Rescaled] = field(default_factory=list)
    deaths: list[Died] = field(default_factory=list)
    ended: Ended | None = None
    """None while it runs."""
    spending: Spending = NOTHING
    _spans: list[tuple[float, float]] = field(default_factory=list)
    """From the beginning of each run to the last that was heard of it."""

    def add(self, record: Record) -> None:
        self.spending = self.spending.after(record)
        match record:
            case Began():
                self.began, self.ended = record, None
                self._spans.append((record.at, record.at))
            case Step() | Window() | Version() | Score() | Measured():
                self.policies.setdefault(record.policy, PolicyStory()).add(record)
            case Fleet():
                self.fleet.append(record)
            case Rescaled():
                self.decisions.append(record)
            case Died():
                self.deaths.append(record)
            case Ended():
                self.ended = record
        if self._spans and record.at > self._spans[-1][1]:
            self._spans[-1] = (self._spans[-1][0], record.at)

    def seconds(self, at: float) -> float:
        """Running time until a moment: pauses between runs do not count."""
        total = 0.0
        for start, end in self._spans[:-1]:
            total += max(0.0, min(at, end) - start)
        if self._spans:
            total += max(0.0, at - self._spans[-1][0])
        return total

    @property
    def resumed_at(self) -> list[float]:
        """Running time at which the job was taken up again."""
        return [self.seconds(start) for start, _ in self._spans[1:]]

    @property
    def duration_s(self) -> float:
        return self.seconds(self._spans[-1][1]) if self._spans else 0.0


def told(records: Iterable[Record]) -> Story:
    story = Story()
    for record in records:
        story.add(record)
    return story


@dataclass(frozen=True)
class Rate:
    """What was trained per second, over a few steps, at a moment of the running time."""

    at: float
    samples: float
    tokens: float


def rates(steps: Sequence[Step], story: Story) -> list[Rate]:
    times = [story.seconds(step.at) for step in steps]
    found = []
    for number in range(max(1, min(_RATE_OVER, len(steps) - 1)), len(steps)):
        first = max(0, number - _RATE_OVER)
        seconds, samples = times[number] - times[first], steps[number].samples - steps[first].samples
        if seconds > 0 and samples >= 0:
            tokens = sum(step.tokens for step in steps[first + 1 : number + 1])
            found.append(Rate(times[number], samples / seconds, tokens / seconds))
    return found
