"""Finds the workflow class that the manifest names."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import cast

from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.fabric.plugins import load_class
from trimtab.fabric.pod import JobMisconfigured
from trimtab.rollout.workflows.team import Workflow


def load_workflow(spec: WorkflowSpec, *, folder: Path) -> Workflow:
    """Import `module:Class`, from workflow.source.path first if there is one, and make it with workflow.args."""
    path = spec.source.path if spec.source is not None else None
    source = folder / path if path is not None else None
    workflow = load_class(spec.entrypoint, spec.args, field="workflow", folder=source)
    if not inspect.iscoroutinefunction(getattr(workflow, "run", None)):
        raise JobMisconfigured(
            f"workflow.entrypoint {spec.entrypoint!r} has no `async def run(self, assignment, team)`"
        )
    return cast(Workflow, workflow)
