"""What asynchrony buys: the same two-policy job run synchronously (roll out, train both, take the new weights, repeat)
and asynchronously, with all real parts, on one machine.

    python -m benchmarks.async_speedup [--steps 80]

Synchronous is `maxStaleness: 0`, everything else is the same: prompts, seeds, tools' times, samples per step, steps,
places of workers. The agentic workload waits for tools (log-normal, two calls an episode), the other only computes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import yaml

from benchmarks.report import Bar, logs_to_stderr, note, report
from examples.curves.record import PolicyCurve, Run
from examples.curves.running import EXAMPLES, prepare, run_manifest

_EXAMPLE = "solver_verifier"
_WORKFLOW = Path(__file__).parent / "async_workload/with_tools.py"
_TOOL = {"median_s": 0.5, "sigma": 1.0, "longest_s": 30.0}
_BATCH = 128
_STALENESS = 2
_WARM_UP_STEPS = 3
_LAST_STEPS = 10
_SPEEDUP_GOAL = 2.7
_LEARNING_GOAL = 0.95


@dataclass(frozen=True, kw_only=True)
class Outcome:
    iteration_s: float
    rewards: dict[str, float]
    """By policy, the mean of the last steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logs_to_stderr()
    outcomes = {
        (workload, staleness): _measure(workload, staleness=staleness, steps=arguments.steps, seed=arguments.seed)
        for workload in ("agentic", "compute")
        for staleness in (0, _STALENESS)
    }
    speedups = {
        workload: outcomes[workload, 0].iteration_s / outcomes[workload, _STALENESS].iteration_s
        for workload in ("agentic", "compute")
    }
    learning = {
        workload: min(
            outcomes[workload, _STALENESS].rewards[policy] / reward
            for policy, reward in outcomes[workload, 0].rewards.items()
        )
        for workload in ("agentic", "compute")
    }
    report(
        "async_speedup",
        {
            "steps": arguments.steps,
            "samples_per_step_and_policy": _BATCH,
            "max_staleness": _STALENESS,
            "tool_seconds": _TOOL | _episode_quantiles(),
            "speedup": speedups,
            **{
                f"{workload}_{'async' if staleness else 'sync'}": {
                    "iteration_s": outcome.iteration_s,
                    "last_rewards": outcome.rewards,
                }
                for (workload, staleness), outcome in outcomes.items()
            },
        },
        {
            "agentic iteration, times faster": Bar(speedups["agentic"], _SPEEDUP_GOAL),
            "agentic last reward, of the synchronous one": Bar(learning["agentic"], _LEARNING_GOAL),
        },
    )


def _measure(workload: str, *, staleness: int, steps: int, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="trimtab-async-") as name:
        folder = Path(name)
        prepare(_EXAMPLE, folder, seed=seed)
        shutil.copy(_WORKFLOW, folder)
        manifest = yaml.safe_load((EXAMPLES / _EXAMPLE / "job.yaml").read_text(encoding="utf-8"))
        _adapt(manifest["spec"], workload, staleness=staleness, steps=steps, seed=seed)
        file = folder / "job.yaml"
        file.write_text(yaml.safe_dump(manifest), encoding="utf-8")
        run = asyncio.run(run_manifest(file, seed=seed))
    outcome = _outcome(run)
    note(f"{workload}, maxStaleness {staleness}: {outcome.iteration_s:.2f} s, {outcome.rewards}")
    return outcome


def _adapt(spec: dict[str, Any], workload: str, *, staleness: int, steps: int, seed: int) -> None:
    spec["maxSteps"] = steps
    spec.pop("targetReward")  # both runs take the same number of samples, however well they learn
    spec.pop("evaluation")
    spec["data"] |= {"seed": seed, "batchSize": _BATCH, "maxStaleness": staleness}
    # A place for each episode of a step: synchronous rollout never queues, and asynchronous has no more places.
    spec["pools"][0]["maxConcurrency"] = _BATCH
    for policy in spec["policies"]:
        policy["algorithm"]["schedule"]["decaySteps"] = steps
    if workload == "agentic":
        spec["workflow"]["entrypoint"] = "with_tools:JudgedAnswerWithTools"
        spec["workflow"]["args"] |= _TOOL


def _outcome(run: Run) -> Outcome:
    return Outcome(
        iteration_s=fmean(map(_iteration_s, run.policies.values())),
        rewards={
            policy: fmean(point.reward for point in curve.steps[-_LAST_STEPS:])
            for policy, curve in run.policies.items()
        },
    )


def _iteration_s(curve: PolicyCurve) -> float:
    steps = curve.steps[_WARM_UP_STEPS:]
    return (steps[-1].seconds - steps[0].seconds) / (len(steps) - 1)


def _episode_quantiles() -> dict[str, float]:
    """Of the two tools of an episode together."""
    chance = random.Random(0)

    def tool_s() -> float:
        return min(_TOOL["longest_s"], _TOOL["median_s"] * chance.lognormvariate(0.0, _TOOL["sigma"]))

    cuts = quantiles((tool_s() + tool_s() for _ in range(100_000)), n=100)
    return {"episode_median_s": cuts[49], "episode_p90_s": cuts[89], "episode_p99_s": cuts[98]}


if __name__ == "__main__":
    main()
