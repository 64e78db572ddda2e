"""What the types of weights cost: a tiny model learns chains with the trainer and the engine in types of their own.

`python -m benchmarks.precision` compares held-out scores, which do not depend on the machine's speed. `--seeds`,
`--corrections` and `--types` narrow it down.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.report import Bar, logs_to_stderr, note, report
from tests.support.learning.reasoning_run import ReasoningRun, ReasoningSetting, reason
from tests.support.learning.small_reasoner import make_reasoner

SEEDS = (0, 1, 2, 3, 4)
TYPES = ("bfloat16", "float16", "float32")
CORRECTIONS: Mapping[str, Mapping[str, Any]] = {
    "m2po": {"name": "m2po"},
    "grpo": {"name": "grpo", "correction": {"type": "None"}},
    "grpo-truncate": {"name": "grpo", "correction": {"type": "Truncate"}},
}
_LOST = 0.02
"""Of the score that float32 on both sides gets to, the default may lack so much."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    correction: str
    trainer: str
    engine: str
    seed: int


def run_trial(model: Path, trial: Trial) -> ReasoningRun:
    torch.set_num_threads(1)
    algorithm = CORRECTIONS[trial.correction]
    setting = ReasoningSetting(algorithm=algorithm, trainer=trial.trainer, engine=trial.engine)
    run = reason(setting, model_path=model, seed=trial.seed)
    note(f"{trial}: {run}")
    return run


def all_trials(trials: Sequence[Trial]) -> list[ReasoningRun]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        make_reasoner(Path(folder), seed=0)
        with ProcessPoolExecutor(os.cpu_count(), mp_context=context, initializer=logs_to_stderr) as pool:
            return list(pool.map(partial(run_trial, Path(folder)), trials))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--corrections", nargs="+", choices=CORRECTIONS, default=list(CORRECTIONS))
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    arguments = parser.parse_args()
    logs_to_stderr()
    cells = list(product(arguments.corrections, arguments.types, arguments.types))
    trials = [
        Trial(correction=correction, trainer=trainer, engine=engine, seed=seed)
        for seed in arguments.seeds
        for correction, trainer, engine in cells
    ]
    runs = dict(zip(trials, all_trials(trials), strict=True))

    def of(correction: str, trainer: str, engine: str) -> list[ReasoningRun]:
        wanted = (correction, trainer, engine)
        return [run for trial, run in runs.items() if (trial.correction, trial.trainer, trial.engine) == wanted]

    figures = {
        "/".join(cell): {
            name: round(fmean(asdict(run)[name] for run in of(*cell)), 4)
            for name in ("before", "after", "reward", "drift", "left_out")
        }
        for cell in cells
    }
    bars = {
        f"{correction}_score_lost_by_the_default": Bar(
            figures[f"{correction}/float32/float32"]["after"] - figures[f"{correction}/bfloat16/bfloat16"]["after"],
            _LOST,
            at_most=True,
        )
        for correction in arguments.corrections
        if {"bfloat16", "float32"} <= set(arguments.types)
    }
    report("precision", {"seeds": len(arguments.seeds), "cells": figures}, bars)


if __name__ == "__main__":
    main()
