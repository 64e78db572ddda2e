"""The simulated AstraFlow case as a picture for the documentation: sizes and waiting over the hours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from benchmarks.autoscaling.simulation import Outcome

# The colours of Okabe and Ito, told apart by colour-blind eyes.
_STYLES = {"fixed 6": "#999999", "fixed 11": "#000000", "three-zone": "#D55E00", "HPA": "#E69F00", "Trim": "#0072B2"}
_SMOOTHED_OVER = 6


def plot_runs(outcomes: Mapping[str, Outcome], path: Path) -> None:
    # Text stays text, and nothing depends on the day: the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trimtab", "font.family": "sans-serif"}):
        figure = Figure(figsize=(8.0, 5.4), layout="constrained", facecolor="white")
        above, below = figure.subplots(2, 1, sharex=True)
        for name, colour in _STYLES.items():
            outcome = outcomes[name]
            hours = [*(hour for hour, _ in outcome.sizes), outcome.wall_h]
            sizes = [*(size for _, size in outcome.sizes), outcome.sizes[-1][1]]
            width = 2.4 if name == "Trim" else 1.0
            above.step(hours, sizes, where="post", label=name, color=colour, linewidth=width)
            below.plot(*_smoothed(outcome), color=colour, linewidth=width)
        above.set_ylabel("rollout GPUs")
        below.set_ylabel("trainer waits")
        below.yaxis.set_major_formatter(PercentFormatter(1.0))
        below.set_xlabel("hours")
        for axes in (above, below):
            axes.grid(axis="y", color="#dddddd", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=len(_STYLES), frameon=False, fontsize=9)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _smoothed(outcome: Outcome) -> tuple[list[float], list[float]]:
    hours, waits = zip(*outcome.waits, strict=True)
    means = [
        sum(waits[max(0, end - _SMOOTHED_OVER) : end]) / min(_SMOOTHED_OVER, end) for end in range(1, len(waits) + 1)
    ]
    return list(hours), means
