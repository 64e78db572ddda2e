"""What staleness costs: every algorithm on a task with a known optimum, trained on samples 0, 1, 4 and 8 versions old.

`python -m benchmarks.learning` compares exact expected rewards, which do not depend on the machine's speed. `--plot
FILE` draws them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.report import Bar, logs_to_stderr, note, report
from benchmarks.training.staleness_plot import plot_staleness
from tests.support.learning.critic_run import learn_with_critic
from tests.support.learning.known_optimum import make_model, words
from tests.support.learning.learning_run import ALGORITHMS, learn, word_setting

WITH_CRITIC = "ppo-critic"
"""Two models that learn: samples are compared with what the second expects, and not with one another."""
NAMES: tuple[str, ...] = (*ALGORITHMS, WITH_CRITIC)
STALENESS = (0, 1, 4, 8)
SEEDS = (0, 1, 2, 3, 4)
NEAR = 0.9
"""Of the best reward."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of the comparison."""

    name: str
    staleness: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    steps_to_near: int | None
    regret: float
    """What is missing to the best reward at the end, as a share of it."""


Outcomes = Mapping[tuple[str, int], Sequence[Outcome]]


def run_trial(trial: Trial) -> Outcome:
    """Task, start and samples all come from the seed."""
    torch.set_num_threads(1)
    task = words(seed=trial.seed)
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        make_model(Path(folder), seed=trial.seed)
        if trial.name == WITH_CRITIC:
            run, _ = learn_with_critic(task, model_path=Path(folder), seed=trial.seed, staleness=trial.staleness)
        else:
            setting = word_setting(trial.name, staleness=trial.staleness)
            run = learn(setting, task, model_path=Path(folder), seed=trial.seed)
    return Outcome(steps_to_near=run.steps_to(NEAR * task.best), regret=1 - run.last_reward / task.best)


def all_trials() -> Outcomes:
    keys = [(name, staleness) for name in NAMES for staleness in STALENESS]
    trials = [Trial(name=name, staleness=staleness, seed=seed) for name, staleness in keys for seed in SEEDS]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context, initializer=logs_to_stderr) as pool:
        outcomes = list(pool.map(run_trial, trials))
    found: dict[tuple[str, int], list[Outcome]] = {key: [] for key in keys}
    for trial, outcome in zip(trials, outcomes, strict=True):
        found[trial.name, trial.staleness].append(outcome)
    return found


def figures(outcomes: Outcomes) -> dict[str, object]:
    by_algorithm: dict[str, dict[str, object]] = {name: {} for name in NAMES}
    for (name, staleness), runs in outcomes.items():
        arrived = [run.steps_to_near for run in runs if run.steps_to_near is not None]
        by_algorithm[name][str(staleness)] = {
            "arrived": len(arrived),
            "median_steps_of_arrived": statistics.median(arrived) if arrived else None,
            "mean_regret": round(mean_regret(runs), 4),
            "regrets": [round(run.regret, 4) for run in runs],
        }
        note(f"{name}, {staleness} versions old: {by_algorithm[name][str(staleness)]}")
    setting = word_setting("grpo")
    return {
        "seeds": len(SEEDS),
        "steps": setting.steps,
        "samples_per_step": setting.group_size * len(words(seed=0).prompts),
        "staleness": by_algorithm,
    }


def mean_regret(runs: Sequence[Outcome]) -> float:
    return statistics.mean(run.regret for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    logs_to_stderr()
    outcomes = all_trials()
    if arguments.plot is not None:
        regrets = {key: [run.regret for run in runs] for key, runs in outcomes.items()}
        plot_staleness(regrets, arguments.plot)
    bars = {f"{name}_fresh_regret": Bar(mean_regret(outcomes[name, 0]), 0.05, at_most=True) for name in NAMES}
    bars["m2po_regret_8_versions_old"] = Bar(mean_regret(outcomes["m2po", 8]), 0.1, at_most=True)
    report("learning", figures(outcomes), bars)


if __name__ == "__main__":
    main()
