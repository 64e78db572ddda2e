"""Policies, rows and trajectories to train on, all from a seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import StepTotals
from trimtab.fabric.wire.spans import Producer, Span, model_span
from trimtab.fabric.wire.trajectory import Finish, Scored, Trajectory
from trimtab.trainer.batch import Row, sole_row
from trimtab.trainer.learner import Learner
from trimtab.trainer.metrics import StepOutcome


def policy(**trainer: Any) -> Policy:
    return Policy.model_validate(
        {
            "name": "solver",
            "model": {"uri": "model"},
            "algorithm": {
                "name": "grpo",
                # With the usual epsilon Adam turns the rounding of a vanishing gradient into a whole step.
                "optimizer": {"learningRate": 1e-2, "weightDecay": 0.01, "epsilon": 1e-4},
                "schedule": {"warmupSteps": 3},
            },
            "trainer": {"dtype": "float32", "microBatchTokens": 64} | trainer,
        }
    )


def critic_policy(**trainer: Any) -> Policy:
    """The same with a value head, which learns from the column `values`."""
    plain = policy(**trainer).model_dump(by_alias=True, exclude_none=True)
    kept = {name: plain["algorithm"][name] for name in ("optimizer", "schedule")}
    return Policy.model_validate(
        plain | {"algorithm": {"name": "critic", "critic": {"stage": "values", "lambda": 1.0}, **kept}}
    )


def rows(count: int, *, seed: int, version: int = 0) -> list[Row]:
    """With a column of log-probabilities and one of values, for algorithms that ask for them."""
    generator, stages = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    made = []
    for number in range(count):
        length = int(generator.integers(3, 20))
        mask = np.zeros(length, dtype=np.bool_)
        mask[length // 2 :] = True
        made.append(
            Row(
                key=number,
                episode=sole_row(number, mask),
                token_ids=generator.integers(0, 15, length).astype(np.int32),
                logprobs=np.where(mask, -generator.exponential(2.5, length), 0.0).astype(np.float32),
                mask=mask,
                versions=np.where(mask, version, -1),
                advantages=np.full(length, generator.normal(), dtype=np.float32),
                columns={
                    "logprobs": np.where(mask, -stages.exponential(2.5, length), 0.0).astype(np.float32),
                    "values": np.where(mask, stages.normal(0.0, 1.0, length), 0.0).astype(np.float32),
                },
            )
        )
    return made


def train_on(learner: Learner, *portions: list[Row], of: int) -> StepOutcome:
    """One step on these portions, with so many samples on all ranks."""
    for portion in portions:
        learner.accumulate(portion)
    return learner.update(StepTotals(samples=of, groups=1, episodes=of, tokens=1, trained_tokens=1))


def trajectory(number: int, *, job: str, group_size: int = 2, version: int = 0) -> Trajectory:
    generator = np.random.default_rng(number)
    return Trajectory(
        trajectory_id=f"task{number // group_size}.solver.{number % group_size}.0",
        job=job,
        policy="solver",
        role="solver",
        task_id=f"task{number // group_size}",
        prompt_id=f"p{number // group_size}",
        group_id=f"task{number // group_size}.solver",
        group_index=number % group_size,
        group_size=group_size,
        outcome=Scored(reward=float(number % group_size), finish=Finish.LENGTH),
        token_ids=generator.integers(0, 15, 6).astype(np.int32),
        logprobs=-generator.exponential(2.0, 2).astype(np.float32),
        spans=(Span(4, Producer.PROMPT), model_span(2, version=version)),
        worker="w",
        pool="p",
        engine="builtin",
        started_at=1.0,
        finished_at=2.0,
    )
