"""A task, and what runs a group of it with a workflow of the test's own."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.rollout.speakers import EchoSampler, role
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.task import Task
from trimtab.rollout.worker.episodes import GroupRunner, Origin
from trimtab.rollout.worker.metrics import RolloutMetrics
from trimtab.rollout.workflows.containment import Containment
from trimtab.rollout.workflows.team import Role

PROMPT = {"prompt": "ab", "answer": "ba"}


TASK = Task(task_id="task-1", job="j", prompt_id="p1", prompt=PROMPT, group_size=3, seed=5, created_at=1.0)


def runner(
    workflow: object,
    roles: Mapping[str, Role] | None = None,
    *,
    timeout_s: float = 60.0,
    metrics: Metrics | None = None,
) -> GroupRunner:
    return GroupRunner(
        workflow,  # type: ignore[arg-type]
        roles or {"solver": role(EchoSampler())},
        Origin(worker="w", pool="p", engine="builtin"),
        Containment(),
        RolloutMetrics(metrics or Metrics()),
        episode_timeout_s=timeout_s,
        clock=lambda: 100.0,
    )
