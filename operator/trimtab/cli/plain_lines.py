"""A run told in lines, where no terminal is there to draw on: every few steps, and every evaluation and decision."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.cli.chronicle.figures import percent
from trimtab.cli.chronicle.records import Score
from trimtab.cli.chronicle.story import Story

_EVERY_STEPS = 5


class PlainLines:
    """Remembers what was told. A resumed run does not tell again what the one before has told."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._steps = {name: policy.steps[-1].step for name, policy in story.policies.items() if policy.steps}
        self._scores = {_place(name, score) for name, score in self._newest_scores()}
        self._decisions = len(story.decisions)

    def new(self) -> Iterator[str]:
        """What there is to tell since the last call."""
        for decision in self._story.decisions[self._decisions :]:
            yield f"fleet {decision.before} → {decision.after}  {decision.reason}: {decision.message}"
        self._decisions = len(self._story.decisions)
        yield from self._new_steps()
        for name, score in self._newest_scores():
            if _place(name, score) not in self._scores:
                self._scores.add(_place(name, score))
                yield f"{name}  {_score_text(score)}"

    def _new_steps(self) -> Iterator[str]:
        for name, policy in self._story.policies.items():
            if not policy.steps or policy.steps[-1].step < self._steps.get(name, -1) + _EVERY_STEPS:
                continue
            last = policy.steps[-1]
            self._steps[name] = last.step
            weights = f"  version {policy.versions[-1].version}" if policy.versions else ""
            yield (
                f"{name}  step {last.step + 1}  reward {last.reward:.3f}  waiting {percent(last.waiting)}"
                f"  staleness {last.staleness:.1f}{weights}"
            )

    def _newest_scores(self) -> list[tuple[str, Score]]:
        return [(name, score) for name, policy in self._story.policies.items() for score in policy.newest_scores]


def _place(policy: str, score: Score) -> tuple[str, str, int]:
    return policy, score.benchmark, score.version


def _score_text(score: Score) -> str:
    value = "-" if score.score is None else f"{score.score:.3f}"
    failed = f"  {score.failed} failed" if score.failed else ""
    return f"{score.benchmark} {value}  version {score.version}  {score.episodes} episodes{failed}"
