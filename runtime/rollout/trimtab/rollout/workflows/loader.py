"""Finds the workflow class that the manifest names."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from pathlib import Path
from typing import cast

from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.fabric.plugins import load_class
from trimtab.fabric.pod import JobMisconfigured
from trimtab.rollout.workflows.team import Workflow


def load_workflow(spec: WorkflowSpec, *, folder: Path, roles: Collection[str]) -> Workflow:
    """Import `module:Class`, from workflow.source.path first if there is one, and make it with workflow.args.

    `roles` are those of the job. They are compared here because an episode that lacks one fails, and so would they all.
    """
    path = spec.source.path if spec.source is not None else None
    source = folder / path if path is not None else None
    workflow = load_class(spec.entrypoint, spec.args, field="workflow", folder=source)
    if not inspect.iscoroutinefunction(getattr(workflow, "run", None)):
        raise JobMisconfigured(f"workflow.entrypoint {spec.entrypoint!r} has no `async def run(self, task, team)`")
    needed = getattr(workflow, "roles", None)
    if needed is not None and sorted(needed) != sorted(roles):
        raise JobMisconfigured(
            f"{spec.entrypoint} needs the roles {', '.join(sorted(needed))}, the job has {', '.join(sorted(roles))}: "
            "set workflow.roles"
        )
    read_from = getattr(workflow, "read_from", None)
    if source is not None and read_from is not None:
        try:
            read_from(source)
        except ValueError as error:
            raise JobMisconfigured(f"workflow.args: {error}") from error
    return cast(Workflow, workflow)
