"""A group becomes trajectories, or one typed failure; never a reward that was not given."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.rollout.group_runners import TASK, runner
from tests.support.rollout.speakers import EchoSampler, role
from trimtab.api.sampling import Sampling
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.sampling import sampling_fields
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Empty, Failed, Scored, Trajectory
from trimtab.rollout.engines.contract import EngineOverloaded, EngineTimeout, SamplingSettings
from trimtab.rollout.policy.sampler import Completion, Listener
from trimtab.rollout.worker.episodes import with_changes
from trimtab.rollout.worker.failures import EpisodeFailed, TaskRefused
from trimtab.rollout.workflows.single_turn import SingleTurn
from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team, WorkflowError

POOL = SamplingSettings(max_new_tokens=8, temperature=0.7, top_p=0.9, top_k=40)


class Scoring:
    """Asks every role once and gives the reward it is told to."""

    def __init__(
        self,
        reward: object,
        *,
        roles: tuple[str, ...] = ("solver",),
        speak: bool = True,
    ) -> None:
        self._reward = reward
        self._roles = roles
        self._speak = speak

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        scored = []
        for name in self._roles:
            conversation = team.begin(name)
            conversation.hear("ab")
            if self._speak:
                await conversation.speak()
            scored.append(ScoredConversation(conversation, self._reward))  # type: ignore[arg-type]
        return Episode(tuple(scored))


async def test_a_group_gives_one_trajectory_per_sample() -> None:
    trajectories = await runner(SingleTurn()).run(TASK)
    assert [t.trajectory_id for t in trajectories] == [f"task-1.solver.{n}.0" for n in range(3)]
    assert {t.group_id for t in trajectories} == {"task-1.solver"}
    assert [t.group_index for t in trajectories] == [0, 1, 2]
    for trajectory in trajectories:
        assert isinstance(trajectory.outcome, Scored)
        assert trajectory.outcome.reward == 1.0
        assert trajectory.token_ids.tolist() == [97, 98, 98, 97]
        assert (trajectory.prompt_tokens, trajectory.trained_tokens, trajectory.oldest_version) == (2, 2, 3)
        assert decode(encode(trajectory), Trajectory) == trajectory


async def test_each_role_gives_a_group_of_its_own() -> None:
    roles = {name: role(EchoSampler(), name, policy=name) for name in ("solver", "critic")}
    trajectories = await runner(Scoring(0.5, roles=("solver", "critic")), roles).run(TASK)
    assert {(t.policy, t.group_id) for t in trajectories} == {("solver", "task-1.solver"), ("critic", "task-1.critic")}
    assert len({t.trajectory_id for t in trajectories}) == 6


async def test_a_role_without_rows_says_so() -> None:
    roles = {name: role(EchoSampler(), name, policy=name) for name in ("solver", "critic")}
    trajectories = await runner(Scoring(0.5), roles).run(TASK)
    empty = [t for t in trajectories if t.role == "critic"]
    assert [(t.outcome, t.parts, t.trajectory_id) for t in empty] == [
        (Empty(), 0, f"task-1.critic.{n}.0") for n in range(3)
    ]
    assert all(decode(encode(t), Trajectory) == t for t in empty)


class Raising:
    def __init__(self, error: Callable[[], BaseException]) -> None:
        self._error = error

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        raise self._error()


class Grouped(Raising):
    async def run(self, assignment: Assignment, team: Team) -> Episode:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run(assignment, team))
        raise AssertionError


class Lost(WorkflowError):
    kind = "lost-in-the-maze"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError


class Mislabelled:
    """Its error says something of itself that no message can carry."""

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        error = Lost("no such kind")
        error.kind = "Lost: in the maze!"  # type: ignore[misc]
        raise error


class Hanging:
    async def run(self, assignment: Assignment, team: Team) -> Episode:
        await asyncio.sleep(60.0)
        raise AssertionError


class Wrong:
    async def run(self, assignment: Assignment, team: Team) -> object:
        return {"reward": 1.0}


@pytest.mark.parametrize(
    ("workflow", "kind", "message"),
    [
        (Scoring(math.nan), "workflow-error", "not a finite number: nan"),
        (Scoring(math.inf), "workflow-error", "not a finite number: inf"),
        (Scoring("much"), "workflow-error", "of role solver, is a str; return a number"),
        (Scoring("1.0"), "workflow-error", "of role solver, is a str; return a number"),
        (Scoring(None), "workflow-error", "of role solver, is a NoneType; return a number"),
        (Scoring(10**400), "workflow-error", "OverflowError"),
        (Scoring(1.0, speak=False), "workflow-error", "the model wrote no token"),
        (Wrong(), "workflow-error", "returned a dict; return an Episode"),
        (Raising(MemoryError), "out-of-memory", "MemoryError"),
        (Raising(Unspeakable), "workflow-error", "Unspeakable: \\(its text cannot be had"),
        (Raising(lambda: SystemExit(0)), "workflow-exited", "SystemExit\\(0\\)"),
        (Raising(KeyboardInterrupt), "workflow-exited", "KeyboardInterrupt"),
        (Raising(asyncio.CancelledError), "workflow-cancelled", "that was cancelled"),
        (Mislabelled(), "workflow-error", "no such kind"),
        (Raising(lambda: ZeroDivisionError("by zero")), "workflow-error", "ZeroDivisionError: by zero"),
        (Raising(lambda: TimeoutError("their own")), "workflow-error", "TimeoutError: their own"),
        (Raising(lambda: EngineOverloaded("full")), "engine-overloaded", "full"),
        (Grouped(lambda: EngineOverloaded("full")), "engine-overloaded", "full"),
        (Grouped(lambda: ZeroDivisionError("by zero")), "workflow-error", "ZeroDivisionError: by zero"),
        (Raising(lambda: Lost("no key")), "lost-in-the-maze", "no key"),
        (Hanging(), "episode-timeout", "not finished within 0.05 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_whatever_goes_wrong_is_a_typed_failure(workflow: object, kind: str, message: str) -> None:
    failing = runner(workflow, timeout_s=0.05 if isinstance(workflow, Hanging) else 30.0)
    with pytest.raises(EpisodeFailed, match=message) as caught:
        await failing.run(TASK)
    assert caught.value.kind == kind
    published = failing.failed(TASK, caught.value)
    assert len(published) == TASK.group_size
    for trajectory in published:
        assert isinstance(trajectory.outcome, Failed)
        assert trajectory.outcome.error == kind
        assert decode(encode(trajectory), Trajectory).outcome == trajectory.outcome


async def test_one_failed_episode_ends_the_others_of_its_group() -> None:
    ended: list[int] = []

    class Uneven:
        async def run(self, assignment: Assignment, team: Team) -> Episode:
            if assignment.request_id.endswith(".1"):
                raise ValueError("mine")
            try:
                await asyncio.sleep(60.0)
            finally:
                ended.append(1)
            raise AssertionError

    with pytest.raises(EpisodeFailed, match="mine"):
        await runner(Uneven(), timeout_s=60.0).run(TASK)
    assert len(ended) == 2


@pytest.mark.parametrize("reward", [1, True, np.float32(0.5), np.bool_(True), Fraction(1, 2), torch.tensor(0.5)])
async def test_whatever_is_a_number_is_a_reward(reward: object) -> None:
    (first, *_) = await runner(Scoring(reward)).run(TASK)
    assert isinstance(first.outcome, Scored)
    assert first.outcome.reward in (0.5, 1.0)


async def test_of_failures_at_the_same_time_a_wrong_task_decides() -> None:
    class Mixed:
        async def run(self, assignment: Assignment, team: Team) -> Episode:
            if assignment.request_id.endswith(".2"):
                assignment.column("question")
            raise ZeroDivisionError

    with pytest.raises(TaskRefused, match="no column 'question'"):
        await runner(Mixed()).run(TASK)


async def test_episodes_are_counted_by_how_they_ended_and_how_long_they_took() -> None:
    metrics = Metrics()
    await runner(SingleTurn(), metrics=metrics).run(TASK)
    value = metrics.registry.get_sample_value
    assert value("trimtab_rollout_episodes_total", {"outcome": "completed"}) == 3
    assert value("trimtab_rollout_episode_seconds_count") == 3
    assert value("trimtab_rollout_episodes_total", {"outcome": "failed"}) is None
    metrics = Metrics()
    with pytest.raises(EpisodeFailed):
        await runner(Raising(ZeroDivisionError), metrics=metrics).run(TASK)
    assert metrics.registry.get_sample_value("trimtab_rollout_episodes_total", {"outcome": "failed"}) == 3


async def test_an_engine_that_does_not_answer_is_named_and_not_the_workflow() -> None:
    class Silent(EchoSampler):
        async def complete(
            self,
            prompt: Sequence[int],
            settings: SamplingSettings,
            *,
            request_id: str,
            deadline_s: float,
            listener: Listener | None = None,
        ) -> Completion:
            assert deadline_s < 0.5
            await asyncio.sleep(deadline_s)
            raise EngineTimeout(f"completion {request_id} not finished")

    with pytest.raises(EpisodeFailed, match="role solver, turn 1: completion") as caught:
        await runner(SingleTurn(), {"solver": role(Silent())}, timeout_s=0.5).run(TASK)
    assert caught.value.kind == "engine-timeout"


def test_what_the_manifest_says_is_what_the_engine_is_asked_for() -> None:
    sampling = Sampling(temperature=0.25, top_p=0.5, top_k=3, min_p=0.1, max_tokens=77, stop=("</a>", "\n"))
    expected = SamplingSettings(max_new_tokens=77, temperature=0.25, top_p=0.5, top_k=3, min_p=0.1, stop=("</a>", "\n"))
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
        {"min_p": 1.5},
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
