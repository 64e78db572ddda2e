"""Finds the workflow class that the manifest names."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.fabric.pod import JobMisconfigured
from trimtab.rollout.workflows.team import Workflow


def load_workflow(spec: WorkflowSpec, *, folder: Path) -> Workflow:
    """Import `module:Class`, from workflow.source.path first if there is one, and make it with workflow.args."""
    if spec.source is not None and spec.source.path is not None:
        sys.path.insert(0, str((folder / spec.source.path).resolve()))
    module_name, _, class_name = spec.entrypoint.partition(":")
    # A module and a class of the user's: whatever they raise is about the manifest, and says so.
    try:
        workflow_class = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:
        raise JobMisconfigured(f"workflow.entrypoint {spec.entrypoint!r} cannot be loaded: {error}") from error
    try:
        workflow: Workflow = workflow_class(**spec.args)
    except Exception as error:
        raise JobMisconfigured(f"workflow.args do not fit {spec.entrypoint}: {error}") from error
    if not inspect.iscoroutinefunction(getattr(workflow, "run", None)):
        raise JobMisconfigured(
            f"workflow.entrypoint {spec.entrypoint!r} has no `async def run(self, assignment, team)`"
        )
    return workflow
