"""A task's own sampling settings reach the engine, and those that make no sense are refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.rollout.group_runners import TASK, runner
from tests.support.rollout.speakers import EchoSampler, role
from trimtab.api.sampling import Sampling
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.sampling import sampling_fields
from trimtab.fabric.wire.task import Task
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.task_sampling import with_changes
from trimtab.rollout.worker.failures import TaskRefused
from trimtab.rollout.workflows.single_turn import SingleTurn

POOL = SamplingSettings(max_new_tokens=8, temperature=0.7, top_p=0.9, top_k=40)


def test_what_the_manifest_says_is_what_the_engine_is_asked_for() -> None:
    sampling = Sampling(temperature=0.25, top_p=0.5, top_k=3, max_tokens=77, stop=("</a>", "\n"))
    expected = SamplingSettings(max_new_tokens=77, temperature=0.25, top_p=0.5, top_k=3, stop=("</a>", "\n"))
    assert SamplingSettings(**sampling_fields(sampling)) == expected
    assert with_changes(POOL, sampling_fields(sampling)) == expected


def test_what_a_task_does_not_mention_stays_as_the_pool_has_it() -> None:
    assert with_changes(POOL, {}) == POOL
    changed = with_changes(POOL, {"temperature": 0})
    assert changed == SamplingSettings(max_new_tokens=8, temperature=0.0, top_p=0.9, top_k=40)


@pytest.mark.parametrize(
    "changes",
    [
        {"temprature": 1.0},
        {"seed": 3},
        {"temperature": "hot"},
        {"temperature": None},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"max_new_tokens": 0},
        {"max_new_tokens": 1.5},
        {"max_new_tokens": True},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -2},
        {"stop": "</a>"},
        {"stop": [""]},
        {"stop": ["x" * 257]},
        {"stop": ["x"] * 17},
    ],
    ids=str,
)
async def test_what_no_engine_could_follow_is_refused_by_name(changes: dict[str, Any]) -> None:
    sampler = EchoSampler()
    task = Task(task_id="t", job="j", prompt_id="p", prompt={}, group_size=2, seed=1, created_at=1.0, sampling=changes)
    with pytest.raises(TaskRefused, match=next(iter(changes))) as refused:
        await runner(SingleTurn(), {"solver": role(sampler)}).run(task)
    assert refused.value.kind == "task-refused"
    assert sampler.asked == []


async def test_an_evaluation_is_sampled_as_its_task_says_and_keeps_its_name() -> None:
    sampler = EchoSampler()
    evaluation = Task(
        task_id="e1",
        job="j",
        prompt_id="p1",
        prompt=TASK.prompt,
        group_size=2,
        seed=5,
        created_at=1.0,
        sampling={"temperature": 0.0, "max_new_tokens": 3},
        purpose=Purpose.EVALUATION,
        benchmark="held-out",
    )
    group = runner(SingleTurn(), {"solver": role(sampler)})
    trajectories = await group.run(evaluation)
    assert {(asked.temperature, asked.max_new_tokens) for asked in sampler.asked} == {(0.0, 3)}
    assert {(t.purpose, t.benchmark) for t in trajectories} == {(Purpose.EVALUATION, "held-out")}
    # The next task is sampled as the pool does it.
    sampler.asked.clear()
    await group.run(TASK)
    assert {(asked.temperature, asked.max_new_tokens) for asked in sampler.asked} == {(1.0, 8)}
