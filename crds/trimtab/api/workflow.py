"""The agent program: which class runs an episode, which policy speaks in which role, and where its code comes from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import ListMap, exactly_one_of, immutable
from trimtab.api.scalars import Entrypoint, FreeForm, Location, MemberName, ObjectName, PositiveSeconds


class ConfigMapSource(ApiModel):
    """Python files held in a ConfigMap of the job's namespace."""

    name: ObjectName
    """Name of the ConfigMap; each key is a file, such as `my_workflow.py`."""


class WorkflowSource(ApiModel):
    """Where user code comes from when it is not installed in the image. It is put first on the import path."""

    rules = (exactly_one_of("configMap", "path"),)

    config_map: ConfigMapSource | None = None
    """A ConfigMap, mounted into every rollout and dataflow pod."""
    path: Location | None = None
    """A folder: in the pod's file system, or beside the manifest with `trimtab run`."""


class Role(ApiModel):
    """One role in the workflow."""

    name: MemberName
    """Name by which the workflow asks for the role."""
    policy: MemberName
    """The policy that speaks in this role; its tokens train that policy."""


class Workflow(ApiModel):
    """What happens in one episode: order of roles, passing of context, assignment of rewards."""

    entrypoint: Annotated[
        Entrypoint, immutable("entrypoint", why="another workflow means other rewards; create a new RLJob")
    ]
    """The workflow class, as `module:Class`."""
    args: FreeForm = Field(default_factory=dict)
    """Keyword arguments for the class, passed as they are."""
    source: WorkflowSource | None = None
    """Where the class's code comes from; absent, the image has it."""
    roles: Annotated[tuple[Role, ...], ListMap(), Field(max_length=32)] = ()
    """Roles and the policies that fill them; empty, each policy is a role of its own name."""
    episode_timeout_seconds: PositiveSeconds = 600
    """Seconds one episode may take. After that it has failed: it is retried or quarantined and never becomes a
    reward."""
