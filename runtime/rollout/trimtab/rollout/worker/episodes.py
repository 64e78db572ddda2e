"""Runs the episodes of one prompt group, and turns what they bring into trajectories."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Failed, Scored, Trajectory
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.policy.sampler import derived_seed
from trimtab.rollout.worker.failures import EpisodeFailed, TaskRefused, failure_of
from trimtab.rollout.worker.metrics import RolloutMetrics
from trimtab.rollout.workflows.containment import Containment
from trimtab.rollout.workflows.source_location import WorkflowSource
from trimtab.rollout.workflows.team import (
    Assignment,
    Episode,
    Role,
    ScoredConversation,
    Team,
    Workflow,
    WorkflowError,
)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Who made a trajectory."""

    worker: str
    pool: str
    engine: str


class GroupRunner:
    """Runs groups with one workflow object. Each of an episode's roles gives one trajectory for its policy."""

    def __init__(
        self,
        workflow: Workflow,
        roles: Mapping[str, Role],
        origin: Origin,
        containment: Containment,
        metrics: RolloutMetrics,
        *,
        episode_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._workflow = workflow
        self._source = WorkflowSource(workflow)
        self._roles = roles
        self._origin = origin
        self._containment = containment
        self._metrics = metrics
        self._episode_timeout_s = episode_timeout_s
        self._clock = clock

    async def run(self, task: Task, episode_ended: Callable[[], None] = lambda: None) -> list[Trajectory]:
        """All trajectories of the group; `episode_ended` is told of each as it ends, in whatever way.

        Raises EpisodeFailed if any episode fails: half a group teaches nothing.
        """
        roles = {
            name: replace(role, sampling=with_changes(role.sampling, task.sampling))
            for name, role in self._roles.items()
        }
        episodes: list[asyncio.Task[list[Trajectory]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                episodes = [group.create_task(self._episode(task, roles, index)) for index in range(task.group_size)]
                for episode in episodes:
                    episode.add_done_callback(lambda _: episode_ended())
        except* EpisodeFailed as failures:
            raise _decisive(failures.exceptions) from None
        return [trajectory for episode in episodes for trajectory in episode.result()]

    def failed(self, task: Task, failure: EpisodeFailed) -> list[Trajectory]:
        """What is published for a group that is given up: failures, which have no reward to be mistaken for one."""
        now = self._clock()
        return [
            Trajectory(
                **self._identity(task, role, index),
                outcome=Failed(error=failure.kind, message=failure.text, retryable=False),
                token_ids=np.zeros(0, dtype=np.int32),
                logprobs=np.zeros(0, dtype=np.float32),
                spans=(),
                turns=0,
                started_at=now,
                finished_at=now,
            )
            for role in self._roles.values()
            for index in range(task.group_size)
        ]

    async def _episode(self, task: Task, roles: Mapping[str, Role], index: int) -> list[Trajectory]:
        started = self._clock()
        assignment = Assignment(
            prompt=task.prompt,
            seed=derived_seed(task.seed, index),
            request_id=f"{task.task_id}.{index}",
            deadline_s=self._episode_timeout_s,
        )
        try:
            episode = await self._containment.run(
                self._workflow.run(assignment, Team(roles, assignment)),
                name=f"episode {assignment.request_id}",
                timeout_s=self._episode_timeout_s,
            )
            self._check_roles(episode)
            finished = self._clock()
            # What the workflow brought may still be no trajectory: a reward that is NaN, a role that never spoke.
            brought = [self._trajectory(task, index, one, started=started, finished=finished) for one in episode.scored]
        except Exception as error:  # a workflow is user code: whatever it raises is a failed episode, not a dead worker
            self._metrics.episode(seconds=self._clock() - started, failed=True)
            raise failure_of(error, self._source) from error
        self._metrics.episode(seconds=finished - started, failed=False)
        return brought

    def _check_roles(self, episode: Episode) -> None:
        """A group is complete when every role has brought its samples; one that is missing would be waited for."""
        if not isinstance(episode, Episode):
            raise WorkflowError(f"run() returned a {type(episode).__name__}; return an Episode")
        scored = sorted(one.conversation.role.name for one in episode.scored)
        if scored != sorted(self._roles):
            raise WorkflowError(f"an episode scores each role once; there are {sorted(self._roles)}, scored {scored}")

    def _trajectory(
        self, task: Task, index: int, scored: ScoredConversation, *, started: float, finished: float
    ) -> Trajectory:
        conversation = scored.conversation
        role = conversation.role.name
        return Trajectory(
            **self._identity(task, conversation.role, index),
            outcome=Scored(
                reward=_finite(scored.reward, what=f"that of role {role}"),
                finish=conversation.finish,
            ),
            token_ids=np.array(conversation.token_ids, dtype=np.int32),
            logprobs=np.minimum(np.array(conversation.logprobs, dtype=np.float32), 0.0),
            spans=conversation.merged_spans(),
            turns=conversation.turns,
            started_at=started,
            finished_at=finished,
        )

    def _identity(self, task: Task, role: Role, index: int) -> dict[str, Any]:
        group_id = f"{task.task_id}.{role.name}"
        return {
            "trajectory_id": f"{group_id}.{index}.0",
            "job": task.job,
            "policy": role.policy,
            "role": role.name,
            "task_id": task.task_id,
            "prompt_id": task.prompt_id,
            "group_id": group_id,
            "group_index": index,
            "group_size": task.group_size,
            "purpose": task.purpose,
            "benchmark": task.benchmark,
            "worker": self._origin.worker,
            "pool": self._origin.pool,
            "engine": self._origin.engine,
        }


def _decisive(failures: Sequence[BaseException]) -> EpisodeFailed:
    """Of episodes that failed at the same time, the one that says most: a task that is wrong is wrong for all."""
    typed = [failure for failure in failures if isinstance(failure, EpisodeFailed)]
    return next((failure for failure in typed if isinstance(failure, TaskRefused)), typed[0])


def _finite(reward: object, *, what: str) -> float:
    """The reward as a number. Text is refused even where it could be read as one: it was returned by mistake."""
    if not hasattr(type(reward), "__float__"):
        raise WorkflowError(f"a reward, {what}, is a {type(reward).__name__}; return a number")
    value = float(reward)  # type: ignore[arg-type]
    if not math.isfinite(value):
        raise WorkflowError(f"a reward, {what}, is not a finite number: {value}")
    return value


class _Changes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a task may change of the pool's sampling settings. The bounds are those of the manifest."""

    max_new_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType = UNSET
    temperature: Annotated[float, Meta(ge=0, le=100)] | UnsetType = UNSET
    top_p: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | UnsetType = UNSET
    min_p: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=16)] | UnsetType = (
        UNSET
    )


def with_changes(settings: SamplingSettings, changes: Mapping[str, Any]) -> SamplingSettings:
    """Raises TaskRefused for a key that is unknown and for a value that no engine could follow."""
    try:
        checked = msgspec.convert(changes, _Changes)
    except msgspec.ValidationError as error:
        known = ", ".join(_Changes.__struct_fields__)
        raise TaskRefused(f"sampling of the task: {error}; it may set {known}") from None
    return replace(settings, **msgspec.to_builtins(checked))
