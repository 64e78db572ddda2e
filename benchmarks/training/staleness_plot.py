"""What staleness costs, as a picture for the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

# The colours of Okabe and Ito, told apart by colour-blind eyes; markers tell them apart in print.
_STYLES: dict[str, tuple[str, str]] = {
    "grpo": ("#000000", "s"),
    "drgrpo": ("#999999", "D"),
    "dapo": ("#E69F00", "^"),
    "gspo": ("#D55E00", "v"),
    "ppo": ("#0072B2", "o"),
    "cispo": ("#56B4E9", "P"),
    "rloo": ("#009E73", "X"),
    "m2po": ("#CC79A7", "*"),
}


def plot_staleness(regrets: Mapping[tuple[str, int], Sequence[float]], path: Path) -> None:
    """The mean regret over seeds as a line, and each seed as a dot beside it."""
    ages = sorted({staleness for _, staleness in regrets})
    # Text stays text, and nothing depends on the day: the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trimtab", "font.family": "sans-serif"}):
        figure = Figure(figsize=(7.5, 4.4), layout="constrained", facecolor="white")
        axes = figure.subplots()
        for number, (name, (colour, marker)) in enumerate(_STYLES.items()):
            places = [place + (number - len(_STYLES) / 2) * 0.07 for place in range(len(ages))]
            by_age = [regrets[name, age] for age in ages]
            means = [statistics.mean(values) for values in by_age]
            axes.plot(places, means, label=name, color=colour, marker=marker, linewidth=1.6, markersize=6)
            for place, values in zip(places, by_age, strict=True):
                axes.plot([place] * len(values), values, ".", color=colour, markersize=3, alpha=0.5)
        axes.set_xticks(range(len(ages)), [str(age) for age in ages])
        axes.set_xlabel("versions between sampling and training")
        axes.set_ylabel("reward missing after 150 steps")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=8, frameon=False, fontsize=9)
        figure.savefig(path, format="svg", metadata={"Date": None})
