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
    """A ConfigMap, mounted into every rollout and dataflow pod, and into trainers whose algorithm is custom."""
    path: Location | None = None
    """A folder: in the pod's file system, or beside the manifest with `trimtab run`."""


class Role(ApiModel):
    """One role in the workflow."""

    name: MemberName
    """Name by which the workflow asks for the role."""
    policy: MemberName
    """The policy that speaks in this role; its tokens train that policy."""


class WorkflowSandbox(ApiModel):
    """Where the workflow executes what a model wrote: a container of the rollout pod without credentials, network or
    view of the others. What it says of limits is the most that one program may take, with all that it starts."""

    timeout_seconds: PositiveSeconds = 10
    """Seconds a program may take, by the clock and of processors."""
    memory_mib: Annotated[int, Field(ge=16, le=1 << 20)] = 512
    """Memory of a program, in MiB."""
    processes: Annotated[int, Field(ge=1, le=4096)] = 32
    """Processes of a program at once; threads count."""
    disk_mib: Annotated[int, Field(ge=1, le=1 << 16)] = 64
    """What a program may write to files, in MiB. It lies in memory."""
    output_kib: Annotated[int, Field(ge=1, le=1 << 18)] = 1024
    """What a program may write to standard output and standard error, in KiB."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 8
    """Programs at once in each pod; more wait."""
    image: Location | None = None
    """Image of the container, which must have Trimtab and what programs need; absent, the one of the worker."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the rollout pods, such as one of gVisor or Kata."""


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
    sandbox: WorkflowSandbox | None = None
    """Where the workflow executes what a model wrote; absent, nothing is executed."""
    episode_timeout_seconds: PositiveSeconds = 600
    """Seconds one episode may take. After that it has failed: it is retried or quarantined and never becomes a
    reward."""
