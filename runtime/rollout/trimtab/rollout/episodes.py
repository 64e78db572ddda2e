"""Runs the episodes of one prompt group, and turns what they bring into trajectories."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Failed, Scored, Trajectory
from trimtab.rollout.engines.errors import EngineError
from trimtab.rollout.failure import EpisodeFailed, TaskRefused
from trimtab.rollout.seeds import derived_seed
from trimtab.rollout.task_sampling import with_changes
from trimtab.rollout.workflows.errors import first_cause
from trimtab.rollout.workflows.team import (
    Assignment,
    Episode,
    PromptUnusable,
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
        *,
        episode_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._workflow = workflow
        self._roles = roles
        self._origin = origin
        self._episode_timeout_s = episode_timeout_s
        self._clock = clock

    async def run(self, task: Task) -> list[Trajectory]:
        """All trajectories of the group. Raises EpisodeFailed if any episode fails: half a group teaches nothing."""
        roles = {
            name: replace(role, sampling=with_changes(role.sampling, task.sampling))
            for name, role in self._roles.items()
        }
        episodes: list[asyncio.Task[list[Trajectory]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                episodes = [group.create_task(self._episode(task, roles, index)) for index in range(task.group_size)]
        except* EpisodeFailed as failures:
            failure = failures.exceptions[0]
            assert isinstance(failure, EpisodeFailed)
            raise failure from None
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
            async with asyncio.timeout(self._episode_timeout_s) as limit:
                episode = await self._workflow.run(assignment, Team(roles, assignment))
            self._check_roles(episode)
            finished = self._clock()
            # What the workflow brought may still be no trajectory: a reward that is NaN, a role that never spoke.
            return [self._trajectory(task, index, one, started=started, finished=finished) for one in episode.scored]
        except Exception as error:  # a workflow is user code: whatever it raises is a failed episode, not a dead worker
            if isinstance(error, TimeoutError) and limit.expired():
                raise EpisodeFailed("episode-timeout", f"not finished within {self._episode_timeout_s:g} s") from None
            cause = first_cause(error)
            if isinstance(cause, PromptUnusable):
                raise TaskRefused(str(cause)) from error
            if isinstance(cause, EngineError | WorkflowError):
                raise EpisodeFailed(cause.kind, str(cause)) from error
            raise EpisodeFailed("workflow-error", f"{type(cause).__name__}: {cause}") from error

    def _check_roles(self, episode: Episode) -> None:
        """A group is complete when every role has brought its samples; one that is missing would be waited for."""
        scored = sorted(one.conversation.role.name for one in episode.scored)
        if scored != sorted(self._roles):
            raise WorkflowError(f"an episode scores each role once; there are {sorted(self._roles)}, scored {scored}")

    def _trajectory(
        self, task: Task, index: int, scored: ScoredConversation, *, started: float, finished: float
    ) -> Trajectory:
        conversation = scored.conversation
        reward = float(scored.reward)
        if not all(map(math.isfinite, (reward, *scored.parts.values()))):
            raise WorkflowError(f"the reward of role {conversation.role.name} is not a finite number: {reward}")
        return Trajectory(
            **self._identity(task, conversation.role, index),
            outcome=Scored(reward=reward, finish=conversation.finish, reward_parts=dict(scored.parts)),
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
            "trajectory_id": f"{group_id}.{index}",
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
