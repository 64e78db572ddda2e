"""A run told in lines, where no terminal is there to draw on: some steps, all evaluations, decisions and troubles."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.cli.chronicle.figures import percent
from trimtab.cli.chronicle.records import Score
from trimtab.cli.chronicle.story import Story
from trimtab.cli.view import Moment, best_so_far, came_back, given_up

_EVERY_STEPS = 5


class PlainLines:
    """Remembers what was told. A resumed run does not tell again what the one before has told."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._steps = {name: policy.steps[-1].step for name, policy in story.policies.items() if policy.steps}
        self._scores = {_place(name, score) for name, score in self._newest_scores()}
        self._decisions = len(story.decisions)
        self._deaths = len(story.deaths)
        self._doing = ""
        self._short = False
        self._failing: frozenset[str] = frozenset()
        self._quarantined = 0

    def new(self, moment: Moment) -> Iterator[str]:
        """What there is to tell since the last call."""
        yield from self._new_troubles(moment)
        for decision in self._story.decisions[self._decisions :]:
            yield f"fleet {decision.before} → {decision.after}  {decision.reason}: {decision.message}"
        self._decisions = len(self._story.decisions)
        yield from self._new_steps()
        for name, score in self._newest_scores():
            if _place(name, score) not in self._scores:
                self._scores.add(_place(name, score))
                yield f"{name}  {_score_text(score)}"

    def _new_troubles(self, moment: Moment) -> Iterator[str]:
        deaths = self._story.deaths[self._deaths :]
        self._deaths = len(self._story.deaths)
        yield from map(came_back, deaths)
        doing = moment.activity.partition(" ")[0]
        if doing != self._doing:
            self._doing = doing
            # What it waits for may be told with the reason, which has just been told.
            yield doing if any(death.why and death.why in moment.activity for death in deaths) else moment.activity
        if (moment.shortage is not None) != self._short:
            self._short = not self._short
            yield moment.shortage or "there is room again"
        for name in sorted(moment.failing.keys() - self._failing):
            yield f"{name} died: {moment.failing[name].strip()}"
        self._failing = frozenset(moment.failing)
        # Twice as many as last time: a job in which everything fails must not say so a thousand times.
        if moment.quarantined >= max(1, 2 * self._quarantined):
            self._quarantined = moment.quarantined
            yield given_up(moment)

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
    return f"{score.benchmark} {value}  version {score.version}  {score.episodes} episodes{failed}{best_so_far(score)}"
