"""The curves as a table for people: a line for each manifest and policy, with the range over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

from examples.curves.record import Curves, PolicyCurve

_ENDS = 10
_HEAD = (
    "| manifest | policy | seeds | steps | generated rollouts | reward of the first and last ten steps |"
    " first and last score on held-out prompts |\n"
    "|---|---|---|---|---|---|---|\n"
)


def summary(curves: Curves) -> str:
    """Markdown. Where seeds differ, from the least to the most."""
    text = f"Made by `{curves.command}`.\n\n{_HEAD}"
    for variant, policy in sorted({(run.variant, policy) for run in curves.runs for policy in run.policies}):
        runs = [run for run in curves.runs if run.variant == variant and policy in run.policies]
        found = [run.policies[policy] for run in runs]
        seeds = " ".join(str(run.seed) for run in runs)
        cells = (
            f"{variant}.yaml",
            policy,
            seeds,
            _range(found, lambda curve: len(curve.steps), "d"),
            _range(found, lambda curve: curve.steps[-1].rollouts, ",d"),
            f"{_range(found, _first_reward)} → {_range(found, _last_reward)}",
            _scores(found),
        )
        text += f"| {' | '.join(cells)} |\n"
    return text


def _range(curves: Sequence[PolicyCurve], figure: Callable[[PolicyCurve], float], form: str = ".2f") -> str:
    values = sorted(figure(curve) for curve in curves)
    ends = [format(value, form) for value in (values[0], values[-1])]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _first_reward(curve: PolicyCurve) -> float:
    return fmean(point.reward for point in curve.steps[:_ENDS])


def _last_reward(curve: PolicyCurve) -> float:
    return fmean(point.reward for point in curve.steps[-_ENDS:])


def _scores(curves: Sequence[PolicyCurve]) -> str:
    """One benchmark after the other."""
    ranges = []
    for benchmark in sorted({name for curve in curves for name in curve.scores}):
        scored = [curve for curve in curves if benchmark in curve.scores]
        first = _range(scored, partial(_score, benchmark=benchmark, place=0))
        last = _range(scored, partial(_score, benchmark=benchmark, place=-1))
        ranges.append(f"{first} → {last}")
    return ", ".join(ranges)


def _score(curve: PolicyCurve, *, benchmark: str, place: int) -> float:
    return curve.scores[benchmark][place].score
