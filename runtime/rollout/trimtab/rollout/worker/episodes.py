"""Runs the episodes of one prompt group, and turns what they bring into trajectories."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Empty, Failed, Phase, Scored, Trajectory
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.phases import EpisodePhases
from trimtab.rollout.policy.sampler import derived_seed
from trimtab.rollout.sandbox.contract import Sandbox
from trimtab.rollout.worker.failures import EpisodeFailed, TaskRefused, failure_of
from trimtab.rollout.worker.metrics import RolloutMetrics
from trimtab.rollout.workflows.containment import Containment
from trimtab.rollout.workflows.forest import Forest, forest_of
from trimtab.rollout.workflows.source_location import WorkflowSource
from trimtab.rollout.workflows.team import (
    Assignment,
    Episode,
    Gateway,
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
    """Runs groups with one workflow object. Each role of an episode gives its rows, or says that there are none."""

    def __init__(
        self,
        workflow: Workflow,
        roles: Mapping[str, Role],
        origin: Origin,
        containment: Containment,
        metrics: RolloutMetrics,
        *,
        gateway: Gateway | None = None,
        sandbox: Sandbox | None = None,
        episode_timeout_s: float,
        clock: Callable[[], float],
        new_run: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """`new_run` names an execution of a task: another one, by whatever worker, has another name."""
        self._workflow = workflow
        self._source = WorkflowSource(workflow)
        self._roles = roles
        self._origin = origin
        self._containment = containment
        self._metrics = metrics
        self._gateway = gateway
        self._sandbox = sandbox
        self._episode_timeout_s = episode_timeout_s
        self._clock = clock
        self._new_run = new_run

    async def run(self, task: Task, episode_ended: Callable[[], None] = lambda: None) -> list[Trajectory]:
        """All trajectories of the group; `episode_ended` is told of each as it ends, in whatever way.

        Raises EpisodeFailed if any episode fails: half a group teaches nothing.
        """
        roles = {
            name: replace(role, sampling=with_changes(role.sampling, task.sampling))
            for name, role in self._roles.items()
        }
        run = self._new_run()
        episodes: list[asyncio.Task[list[Trajectory]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                episodes = [
                    group.create_task(self._episode(task, roles, index, run)) for index in range(task.group_size)
                ]
                for episode in episodes:
                    episode.add_done_callback(lambda _: episode_ended())
        except* EpisodeFailed as failures:
            raise _decisive(failures.exceptions) from None
        return [trajectory for episode in episodes for trajectory in episode.result()]

    def failed(self, task: Task, failure: EpisodeFailed) -> list[Trajectory]:
        """What is published for a group that is given up: failures, which have no reward to be mistaken for one."""
        now, run = self._clock(), self._new_run()
        failed = Failed(error=failure.kind, message=failure.text, retryable=False)
        return [
            self._without_tokens(task, role, index, run, outcome=failed, started=now, finished=now)
            for role in self._roles.values()
            if not role.frozen
            for index in range(task.group_size)
        ]

    async def _episode(self, task: Task, roles: Mapping[str, Role], index: int, run: str) -> list[Trajectory]:
        started = self._clock()
        assignment = Assignment(
            prompt=task.prompt,
            seed=derived_seed(task.seed, index),
            request_id=f"{task.task_id}.{index}",
            deadline_s=self._episode_timeout_s,
        )
        phases = EpisodePhases()
        try:
            with phases.recorded():
                team = Team(roles, assignment, gateway=self._gateway, sandbox=self._sandbox)
                episode = await self._containment.run(
                    self._workflow.run(assignment, team),
                    name=f"episode {assignment.request_id}",
                    timeout_s=self._episode_timeout_s,
                )
            finished = self._clock()
            # What the workflow brought may still be no row: a reward that is NaN, a role that never spoke.
            forests = _forests(episode, roles)
            brought = [
                trajectory
                for name, forest in forests.items()
                for trajectory in self._rows(
                    task, roles[name], index, run, forest, started=started, finished=finished, phases=phases.found
                )
            ]
        except Exception as error:  # a workflow is user code: whatever it raises is a failed episode, not a dead worker
            self._metrics.episode(seconds=self._clock() - started, failed=True)
            raise failure_of(error, self._source) from error
        self._metrics.episode(seconds=finished - started, failed=False)
        for name, forest in forests.items():
            self._metrics.rows(roles[name].policy, tokens=forest.tokens, distinct=forest.distinct_tokens)
        return brought

    def _rows(
        self, task: Task, role: Role, index: int, run: str, forest: Forest, *, started: float, finished: float,
        phases: tuple[Phase, ...],
    ) -> list[Trajectory]:  # fmt: skip
        """A group is complete when every episode is closed, by its rows or without any."""
        if not forest.rows:
            return [self._without_tokens(task, role, index, run, outcome=Empty(), started=started, finished=finished)]
        return [
            Trajectory(
                **self._identity(task, role, index, run, part=part, parts=len(forest.rows)),
                outcome=Scored(reward=row.reward, finish=row.finish),
                token_ids=np.array(row.token_ids, dtype=np.int32),
                logprobs=np.minimum(np.array(row.logprobs, dtype=np.float32), 0.0),
                spans=row.spans,
                turns=len(row.turns),
                turn_rewards=row.turns if role.credits_turns else (),
                reward_parts=dict(row.reward_parts),
                phases=phases,
                queued_at=task.created_at,
                started_at=started,
                finished_at=finished,
            )
            for part, row in enumerate(forest.rows)
        ]

    def _without_tokens(
        self, task: Task, role: Role, index: int, run: str, *, outcome: Failed | Empty, started: float, finished: float
    ) -> Trajectory:
        return Trajectory(
            **self._identity(task, role, index, run, part=0, parts=0 if isinstance(outcome, Empty) else 1),
            outcome=outcome,
            token_ids=np.zeros(0, dtype=np.int32),
            logprobs=np.zeros(0, dtype=np.float32),
            spans=(),
            turns=0,
            started_at=started,
            finished_at=finished,
        )

    def _identity(self, task: Task, role: Role, index: int, run: str, *, part: int, parts: int) -> dict[str, Any]:
        group_id = f"{task.task_id}.{role.name}"
        return {
            "trajectory_id": f"{group_id}.{index}.{part}",
            "job": task.job,
            "policy": role.policy,
            "role": role.name,
            "task_id": task.task_id,
            "prompt_id": task.prompt_id,
            "group_id": group_id,
            "group_index": index,
            "group_size": task.group_size,
            "part": part,
            "parts": parts,
            "run": run,
            "label": task.label,
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


def _forests(episode: object, roles: Mapping[str, Role]) -> dict[str, Forest]:
    """By role, what it has to learn; of frozen ones nothing."""
    if not isinstance(episode, Episode):
        raise WorkflowError(f"run() returned a {type(episode).__name__}; return an Episode")
    scored: dict[str, list[ScoredConversation]] = {role: [] for role in roles}
    for one in episode.scored:
        scored[one.conversation.role.name].append(one)
    return {name: forest_of(name, own) for name, own in scored.items() if not roles[name].frozen}


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
