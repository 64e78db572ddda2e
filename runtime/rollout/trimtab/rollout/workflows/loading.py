"""Finds the workflow class that the manifest names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.rollout.workflows.team import Workflow, WorkflowError


def load_workflow(spec: WorkflowSpec, *, folder: Path) -> Workflow:
    """Import `module:Class`, from workflow.source.path first if there is one, and make it with workflow.args."""
    if spec.source is not None and spec.source.path is not None:
        sys.path.insert(0, str((folder / spec.source.path).resolve()))
    module_name, _, class_name = spec.entrypoint.partition(":")
    try:
        workflow_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise WorkflowError(f"workflow.entrypoint {spec.entrypoint!r} cannot be loaded: {error}") from error
    try:
        workflow: Workflow = workflow_class(**spec.args)
    except TypeError as error:
        raise WorkflowError(f"workflow.args do not fit {spec.entrypoint}: {error}") from error
    return workflow
