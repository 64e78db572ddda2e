"""Curves as a picture: a thin line for each seed, a thick one for their mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.curves.record import Curves, PolicyCurve, Run

# The colours of Okabe and Ito, told apart by colour-blind eyes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_SMOOTHED_STEPS = 5
_GRID = 120

Line = tuple[Sequence[float], Sequence[float]]


def draw(curves: Curves, path: Path) -> None:
    """Reward by step, and where there are held-out prompts their score by generated rollouts."""
    lines = sorted({(run.variant, policy) for run in curves.runs for policy in run.policies})
    scored = any(curve.scores for run in curves.runs for curve in run.policies.values())
    # Text stays text, and nothing depends on the day: the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trimtab", "font.family": "sans-serif"}):
        figure = Figure(figsize=(10.0 if scored else 6.0, 4.0), layout="constrained", facecolor="white")
        panels = figure.subplots(1, 2 if scored else 1, squeeze=False)[0]
        _panel(panels[0], curves.runs, lines, _rewards, x="trainer step", y=f"reward, mean of {_SMOOTHED_STEPS} steps")
        if scored:
            _panel(panels[1], curves.runs, lines, _scores, x="generated rollouts", y="score on held-out prompts")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(lines), frameon=False, fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _panel(
    axes: Axes,
    runs: Iterable[Run],
    lines: Sequence[tuple[str, str]],
    points: Callable[[PolicyCurve], Line],
    *,
    x: str,
    y: str,
) -> None:
    one_variant = len({variant for variant, _ in lines}) == 1
    for number, (variant, policy) in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        seeds = [points(run.policies[policy]) for run in runs if run.variant == variant and policy in run.policies]
        seeds = [line for line in seeds if line[0]]
        for across, up in seeds:
            axes.plot(across, up, color=colour, linewidth=0.7, alpha=0.5)
        if seeds:
            axes.plot(*mean_line(seeds), color=colour, linewidth=2.0, label=policy if one_variant else variant)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(0, 1)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _rewards(curve: PolicyCurve) -> Line:
    rewards = [point.reward for point in curve.steps]
    smoothed = [fmean(rewards[max(0, end - _SMOOTHED_STEPS) : end]) for end in range(1, len(rewards) + 1)]
    return [point.step for point in curve.steps], smoothed


def _scores(curve: PolicyCurve) -> Line:
    """Of all benchmarks on average, where there are several."""
    rounds: dict[float, list[tuple[float, float]]] = {}
    for found in curve.scores.values():
        for point in found:
            rounds.setdefault(point.version, []).append((point.rollouts, point.score))
    means = [(fmean(at for at, _ in found), fmean(score for _, score in found)) for _, found in sorted(rounds.items())]
    return [at for at, _ in means], [score for _, score in means]


def mean_line(lines: Sequence[Line]) -> Line:
    """As far as all lines reach, each drawn straight between its points."""
    begin = max(across[0] for across, _ in lines)
    end = min(across[-1] for across, _ in lines)
    grid = np.linspace(begin, max(begin, end), _GRID)
    return grid.tolist(), np.mean([np.interp(grid, across, up) for across, up in lines], axis=0).tolist()
