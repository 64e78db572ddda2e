"""A run's history as the page is told it: the curves that trackers are told too, with rates, the events with their
reasons, and what it all comes down to.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from statistics import fmean

import msgspec

from trimtab.cli.chronicle.figures import figures
from trimtab.cli.chronicle.records import Began, Died, Ended, Record, Rescaled, Score, Step, Version
from trimtab.cli.chronicle.story import Story, rates
from trimtab.cli.tracking.points import Points
from trimtab.cli.ui.shown import Figure, Summary, Told

_RATE_STEPS = 6
_CURVE = 48
_WINDOW = 10


class HistoryTelling:
    """`told` only grows."""

    def __init__(self) -> None:
        self.story = Story()
        self.told: list[Told] = []
        self._points = Points()
        self._latest: defaultdict[str, deque[Step]] = defaultdict(lambda: deque(maxlen=_RATE_STEPS))
        self._changed_at: float | None = None

    def add(self, record: Record) -> None:
        self.story.add(record)
        self._changed_at = record.at
        self.told += self._of(record)

    def _of(self, record: Record) -> Iterator[Told]:
        t = self.story.seconds(record.at)
        if isinstance(record, Began | Rescaled | Died | Ended):
            yield Told(t=t, at=record.at, event=_without_folders(record))
            return
        # A step is counted from 1 here; the version that it leads to has that number already.
        first = 0 if isinstance(record, Version | Score) else 1
        for point in self._points.of(record):
            values = dict(point.values)
            if isinstance(record, Step):
                values |= self._rates(record)
            yield Told(t=t, at=record.at, step=point.step + first, values=values)

    def _rates(self, step: Step) -> dict[str, float]:
        latest = self._latest[step.policy]
        if latest and step.step <= latest[-1].step:
            latest.clear()
        latest.append(step)
        if len(latest) < _RATE_STEPS:
            # The first steps find their samples ready.
            return {}
        found = rates(list(latest), self.story)[-1:]
        return {
            f"{step.policy}/rate/{name}": value
            for rate in found
            for name, value in (("samples", rate.samples), ("tokens", rate.tokens))
            if value
        }

    def figures(self) -> list[Figure]:
        return [Figure(name=one.name, value=one.value, note=one.note) for one in figures(self.story)]

    def summary(self, *, run_id: str, name: str, where: str, state: str, trouble: str = "") -> Summary:
        story, began = self.story, self.story.began
        steps = {policy: told.steps for policy, told in story.policies.items()}
        steps = {policy: made for policy, made in steps.items() if made}
        window = began.window_steps if began else _WINDOW
        fleet = story.fleet[-1] if story.fleet else None
        return Summary(
            id=run_id,
            job=began.job if began else name,
            where=where,
            state=state,
            trouble=trouble,
            policies=sorted(story.policies),
            step=min((made[-1].step + 1 for made in steps.values()), default=0),
            max_steps=began.max_steps if began else None,
            reward=fmean(fmean(step.reward for step in made[-window:]) for made in steps.values()) if steps else None,
            scores={
                benchmark: scores[-1].score
                for policy in story.policies.values()
                for benchmark, scores in policy.scores.items()
                if scores[-1].score is not None
            },
            ready=sum(fleet.ready.values()) if fleet else 0,
            wanted=sum(fleet.wanted.values()) if fleet else 0,
            began_at=began.at if began else None,
            changed_at=self._changed_at,
            seconds=story.duration_s,
            curve=_thinned([step.reward for step in next(iter(steps.values()), [])]),
        )


def _without_folders(record: Began | Rescaled | Died | Ended) -> Began | Rescaled | Died | Ended:
    return msgspec.structs.replace(record, models={}, tokenizers={}) if isinstance(record, Began) else record


def _thinned(values: Sequence[float]) -> list[float]:
    columns = min(_CURVE, len(values))
    parts = (values[len(values) * n // columns : len(values) * (n + 1) // columns] for n in range(columns))
    return [round(fmean(part), 4) for part in parts]
