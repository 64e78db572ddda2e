"""The sizes as a picture for the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.weights.peers import ASTRAFLOW, FULL, GAPS, INDEXED, XOR
from benchmarks.weights.simulation import Case, Regime
from benchmarks.weights.sizes import CONTEXT, MEMORYLESS, MODEL_PARAMETERS, Sizes
from trimtab.weights.codec.blocks import Codec


@dataclass(frozen=True)
class _Line:
    format: str
    label: str
    colour: str
    marker: str
    style: str = "-"
    width: float = 1.4
    labelled: float | None = None
    """How far above the line its values stand, in points."""


# The colours of Okabe and Ito, told apart by colour-blind eyes; markers and dashes tell them apart in print.
_LINES = (
    _Line(FULL, "full bf16", "#000000", ""),
    _Line(ASTRAFLOW, "u64 index + bf16 (AstraFlow)", "#D55E00", "s", labelled=7.0),
    _Line(INDEXED, "u32 index + bf16", "#E69F00", "D"),
    _Line(XOR, "XOR + zstd-1 (slime)", "#CC79A7", "^"),
    _Line(GAPS, "gaps + XOR + zstd-1 (NeMo-RL)", "#8C6BB1", "v"),
    _Line(Codec.FAST, "Trimtab fast", "#56B4E9", "o", width=2.6),
    _Line(MEMORYLESS, "limit without context", "#56B4E9", "", "--"),
    _Line(Codec.COMPACT, "Trimtab compact", "#0072B2", "o", width=2.6, labelled=-14.0),
    _Line(CONTEXT, "limit given the old exponents", "#0072B2", "", "--"),
)
_TITLES = {Regime.FRESH: "Start of a run", Regime.STEADY: "Steady state"}
_TICKS = (50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)


def plot_sizes(totals: Mapping[Case, Sizes], path: Path) -> None:
    # Text stays text, and nothing depends on the day: the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trimtab", "font.family": "sans-serif"}):
        figure = Figure(figsize=(9.5, 5.2), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, regime in ((left, Regime.FRESH), (right, Regime.STEADY)):
            _draw(axes, {case.sparsity: sizes for case, sizes in totals.items() if case.regime is regime})
            axes.set_title(_TITLES[regime], fontsize=11)
        left.set_ylabel(f"MB per step for {MODEL_PARAMETERS / 1e9:g}e9 parameters")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        figure.suptitle("Size of a weight delta", fontsize=13)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw(axes: Axes, by_sparsity: Mapping[float, Sizes]) -> None:
    places = range(len(by_sparsity))
    scaled = [sizes.scaled_mb() for sizes in by_sparsity.values()]
    for line in _LINES:
        values = [sizes[line.format] for sizes in scaled]
        axes.plot(
            places, values, label=line.label, color=line.colour, marker=line.marker, linestyle=line.style,
            linewidth=line.width, markersize=5,
        )  # fmt: skip
        if line.labelled is not None:
            for place, value in zip(places, values, strict=True):
                axes.annotate(
                    f"{value:.0f}", (place, value), xytext=(0, line.labelled), textcoords="offset points", ha="center",
                    fontsize=8, color=line.colour,
                )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(bottom=20)
    axes.set_yticks(_TICKS)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(places), [f"{sparsity:.1%}" for sparsity in by_sparsity])
    axes.set_xlabel("weights that did not change")
    axes.margins(x=0.12)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
