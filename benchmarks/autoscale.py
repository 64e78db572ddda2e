"""AstraFlow's auto-scaling experiment and 50 random workloads, simulated event by event, with the fleet sized by the
operator's own `decide`: GPU-hours and wall time against fixed fleets, the formula as published, and Kubernetes' HPA.

    python -m benchmarks.autoscale [--plot FILE]

A workload counts as worse when the product of GPU-hours and wall time is: one per cent more of either weighs the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks.autoscaling.controllers import Fixed, Utilisation, ours, plain
from benchmarks.autoscaling.plot import plot_runs
from benchmarks.autoscaling.simulation import Controller, Outcome, World
from benchmarks.autoscaling.workload import Workload
from benchmarks.autoscaling.workloads import (
    PAPER_AUTO_GPU_H,
    PAPER_AUTO_H,
    PAPER_FIXED_6_H,
    PAPER_FIXED_11_H,
    astraflow,
    random_workload,
)
from benchmarks.report import Bar, note, report

_SEEDS = (1, 2, 3)
_RANDOM = range(50)
_HPA_TARGETS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
_ABOUT_EQUAL = 1.01


def astraflow_runs() -> dict[str, list[Outcome]]:
    """Every contender on every seed. HPA gets the target that suits it best."""
    contenders: dict[str, Callable[[int], Outcome]] = {
        "fixed 6": lambda seed: _run(astraflow(first_replicas=6, seed=seed), lambda _: Fixed()),
        "fixed 11": lambda seed: _run(astraflow(first_replicas=11, seed=seed), lambda _: Fixed()),
        "three-zone": lambda seed: _run(astraflow(first_replicas=6, seed=seed), plain),
        "three-zone from 11": lambda seed: _run(astraflow(first_replicas=11, seed=seed), plain),
        "Trim": lambda seed: _run(astraflow(first_replicas=6, seed=seed), ours),
        "Trim from 11": lambda seed: _run(astraflow(first_replicas=11, seed=seed), ours),
    }
    runs = {name: [run(seed) for seed in _SEEDS] for name, run in contenders.items()}
    tuned = [
        [_run(astraflow(first_replicas=6, seed=seed), partial(Utilisation, target=target)) for seed in _SEEDS]
        for target in _HPA_TARGETS
    ]
    runs["HPA"] = min(tuned, key=lambda outcomes: fmean(outcome.product for outcome in outcomes))
    return runs


def least_gpu_hours(workload: Workload) -> float:
    """The least there can be: every step known beforehand, replicas divisible, started in no time, no work lost."""
    return (
        sum(
            workload.step_s(step)
            * (workload.trainer_devices + max(workload.min_replicas, workload.replicas_needed(step)))
            for step in range(workload.steps)
        )
        / 3600
    )


def clairvoyant(workload: Workload) -> tuple[float, float]:
    """The same with whole replicas, GPU-hours and hours: for each step the size that costs the fewest."""
    gpu_s = wall_s = 0.0
    for step in range(workload.steps):
        need, step_s = workload.replicas_needed(step), workload.step_s(step)

        def cost(size: int, need: float = need, step_s: float = step_s) -> float:
            return (workload.trainer_devices + size) * step_s * max(1.0, need / size)

        size = min(range(workload.min_replicas, workload.max_replicas + 1), key=cost)
        gpu_s += cost(size)
        wall_s += step_s * max(1.0, need / size)
    return gpu_s / 3600, wall_s / 3600


def _run(workload: Workload, controller: Callable[[Workload], Controller]) -> Outcome:
    return World(workload, controller(workload)).run()


def _mean(outcomes: Sequence[Outcome]) -> Outcome:
    return replace(
        outcomes[0],
        wall_h=fmean(outcome.wall_h for outcome in outcomes),
        device_h=fmean(outcome.device_h for outcome in outcomes),
        wait=fmean(outcome.wait for outcome in outcomes),
        staleness=fmean(outcome.staleness for outcome in outcomes),
    )


def _shown(outcomes: Sequence[Outcome], base: Outcome) -> dict[str, float]:
    mean = _mean(outcomes)
    return {
        "wall_h": round(mean.wall_h, 2),
        "gpu_h": round(mean.device_h, 1),
        "wait": round(mean.wait, 4),
        "changes": round(fmean(outcome.changes for outcome in outcomes), 1),
        "staleness": round(mean.staleness, 2),
        "wall_of_fixed_11": round(mean.wall_h / base.wall_h, 4),
        "gpu_h_of_fixed_11": round(mean.device_h / base.device_h, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, help="draw the first seed of the AstraFlow case into this file")
    arguments = parser.parse_args()
    runs = astraflow_runs()
    base = _mean(runs["fixed 11"])
    for name, outcomes in runs.items():
        note(f"{name}: {_shown(outcomes, base)}")
    pairs = []
    for seed in _RANDOM:
        workload = random_workload(seed)
        theirs, mine = _run(workload, plain), _run(workload, ours)
        pairs.append((theirs, mine))
        note(
            f"random {seed}: GPU-hours {mine.device_h / theirs.device_h:.3f}, wall {mine.wall_h / theirs.wall_h:.3f}, "
            f"product {mine.product / theirs.product:.3f} of three-zone"
        )
    if arguments.plot is not None:
        plot_runs({name: outcomes[0] for name, outcomes in runs.items()}, arguments.plot)
    products = [mine.product / theirs.product for theirs, mine in pairs]
    trim = _mean(runs["Trim"])
    best_gpu_h, best_wall_h = clairvoyant(astraflow(first_replicas=6))
    report(
        "autoscale",
        {
            "astraflow": {name: _shown(outcomes, base) for name, outcomes in runs.items()},
            "paper": {
                "fixed_6_wall_h": PAPER_FIXED_6_H,
                "fixed_11_wall_h": PAPER_FIXED_11_H,
                "auto_wall_h": PAPER_AUTO_H,
                "auto_gpu_h": PAPER_AUTO_GPU_H,
            },
            "least_gpu_h_of_fixed_11": round(least_gpu_hours(astraflow(first_replicas=6)) / base.device_h, 4),
            "clairvoyant_gpu_h_of_fixed_11": round(best_gpu_h / base.device_h, 4),
            "clairvoyant_wall_of_fixed_11": round(best_wall_h / base.wall_h, 4),
            "random": {
                "workloads": len(pairs),
                "mean_product": round(fmean(products), 4),
                "mean_gpu_h": round(fmean(mine.device_h / theirs.device_h for theirs, mine in pairs), 4),
                "mean_wall": round(fmean(mine.wall_h / theirs.wall_h for theirs, mine in pairs), 4),
                "worse_by_product": sum(product > _ABOUT_EQUAL for product in products),
                "more_gpu_hours_and_no_faster": sum(
                    mine.device_h > _ABOUT_EQUAL * theirs.device_h and mine.wall_h >= theirs.wall_h
                    for theirs, mine in pairs
                ),
            },
        },
        {
            "gpu_hours_of_fixed_11": Bar(trim.device_h / base.device_h, 0.90, at_most=True),
            "wall_time_of_fixed_11": Bar(trim.wall_h / base.wall_h, 1.01, at_most=True),
            "worst_random_workload_of_three_zone": Bar(max(products), 1.01, at_most=True),
        },
    )


if __name__ == "__main__":
    main()
