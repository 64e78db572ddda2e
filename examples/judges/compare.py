"""Compares the ways of scoring steps: `python -m examples.judges.compare` reads the curves of the example, and prints
the outcome at the beginning and at the end for each, with intervals over the seeds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import click

from examples.curves.record import Curves, read_curves

_ENDS = 10
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""By degrees of freedom, from one: 95 in 100 intervals hold the mean."""
_HEAD = (
    "| steps are scored by | seeds | right outcomes, first ten steps | last ten steps | all steps |\n"
    "|---|---|---|---|---|\n"
)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and how far from it the interval goes; without end where there is one value."""
    if len(values) < 2:
        return fmean(values), math.inf
    student = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1]
    return fmean(values), student * stdev(values) / math.sqrt(len(values))


def comparison(curves: Curves) -> str:
    """Markdown."""
    text = _HEAD
    for variant in sorted({run.variant for run in curves.runs}):
        runs = [run for run in curves.runs if run.variant == variant]
        outcomes = [[point.reward for point in run.policies["solver"].steps] for run in runs]
        cells = [
            _shown([fmean(one[:_ENDS]) for one in outcomes]),
            _shown([fmean(one[-_ENDS:]) for one in outcomes]),
            _shown([fmean(one) for one in outcomes]),
        ]
        text += f"| {variant} | {' '.join(str(run.seed) for run in runs)} | {' | '.join(cells)} |\n"
    return text


def _shown(values: Sequence[float]) -> str:
    mean, half = interval(values)
    return f"{mean:.2f} ± {half:.2f}" if math.isfinite(half) else f"{mean:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.judges.compare", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    text = comparison(read_curves(arguments.results / "curves.json", example="judges"))
    (arguments.results / "comparison.md").write_text(text, encoding="utf-8")
    click.echo(text, nl=False)


if __name__ == "__main__":
    main()
