"""The graph of a job: nodes in the order in which data passes them, and edges that say what flows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trimtab.api.data import Filter
from trimtab.api.job import RLJob, RLJobSpec
from trimtab.api.placement import policies_with_rows, roles_of, rows_of, stages_of
from trimtab.api.pool import JobPool

_FLOWS = {
    "Logprobs": "logprobs",
    "Values": "values",
    "Reward": "rewards",
    "TurnRewards": "turn rewards",
    "Filter": "rows kept",
    "Custom": "column",
}


@dataclass(frozen=True, kw_only=True)
class Node:
    id: str
    title: str
    does: str
    where: str
    layer: int
    """Its place on the way of the data; nodes of one layer do not wait for each other."""


@dataclass(frozen=True, kw_only=True)
class Edge:
    source: str
    target: str
    carries: str


@dataclass(frozen=True, kw_only=True)
class Graph:
    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def layer_of(self, node: str) -> int:
        return next(one.layer for one in self.nodes if one.id == node)


def graph_of(job: RLJob) -> Graph:
    spec = job.spec
    depth = max(_depths(spec).values(), default=0)
    nodes = [_prompts(spec), *_roles(spec), *_stages(spec), *_buffers(spec, 2 + depth), *_trainers(spec, 3 + depth)]
    edges = [*_tasks(spec), *_through_stages(spec), *_batches(spec), *_weights(spec)]
    return Graph(name=job.metadata.name, nodes=tuple(nodes), edges=tuple(edges))


def _depths(spec: RLJobSpec) -> dict[str, int]:
    """How many stages one after the other there are up to each, itself included."""
    depths: dict[str, int] = {}
    for stage in spec.stages:
        depths[stage.name] = 1 + max((depths[need] for need in stage.needs), default=0)
    return depths


def _prompts(spec: RLJobSpec) -> Node:
    names = ", ".join(source.name for source in spec.data.prompts)
    does = f"{names}; groups of {spec.data.group_size}"
    return Node(id="prompts", title="prompts", does=does, where="dataflow", layer=0)


def _roles(spec: RLJobSpec) -> Iterator[Node]:
    frozen = {policy.name for policy in spec.policies if policy.frozen}
    where = _places(pool for pool in spec.pools if pool.rollouts)
    for role, policy in roles_of(spec).items():
        does = f"policy {policy}, frozen" if policy in frozen else f"policy {policy}"
        yield Node(id=f"role {role}", title=f"role {role}", does=does, where=where, layer=1)


def _stages(spec: RLJobSpec) -> Iterator[Node]:
    depths = _depths(spec)
    for stage in spec.stages:
        where = _places(pool for pool in spec.pools if stage in stages_of(spec, pool, name=pool.name))
        by = [] if stage.plugin is None else [stage.plugin.entrypoint]
        by += [] if stage.policy is None else [f"policy {stage.policy}"]
        does = f"{stage.computes} by {' and '.join(by)}, of {', '.join(rows_of(spec, stage))}"
        yield Node(
            id=f"stage {stage.name}", title=f"stage {stage.name}", does=does, where=where, layer=1 + depths[stage.name]
        )


def _buffers(spec: RLJobSpec, layer: int) -> Iterator[Node]:
    filtered = "filter, " if spec.data.filter != Filter() else ""
    replayed = f", replay {spec.data.replay.ratio:g}" if spec.data.replay is not None else ""
    for policy in policies_with_rows(spec):
        does = f"{filtered}staleness up to {spec.data.max_staleness}{replayed}"
        yield Node(id=f"buffer {policy}", title=f"buffer {policy}", does=does, where="dataflow", layer=layer)


def _trainers(spec: RLJobSpec, layer: int) -> Iterator[Node]:
    for policy in spec.learning:
        ranks = policy.trainer.replicas * policy.trainer.devices_per_replica
        where = f"trainer, {ranks} rank{'s' if ranks > 1 else ''}"
        does = f"{policy.algorithm.name}, batches of {spec.batch_size(policy.name)}"
        yield Node(id=f"trainer {policy.name}", title=f"trainer {policy.name}", does=does, where=where, layer=layer)
        every = policy.trainer.publish.every_steps
        does = "a version each step" if every == 1 else f"a version every {every} steps"
        yield Node(
            id=f"weights {policy.name}",
            title=f"weights {policy.name}",
            does=does,
            where="object storage",
            layer=layer + 1,
        )


def _tasks(spec: RLJobSpec) -> Iterator[Edge]:
    for role in roles_of(spec):
        yield Edge(source="prompts", target=f"role {role}", carries="tasks")


def _through_stages(spec: RLJobSpec) -> Iterator[Edge]:
    learning = {policy.name for policy in spec.learning}
    for role, policy in roles_of(spec).items():
        if policy not in learning:
            continue
        own = [stage for stage in spec.stages if policy in rows_of(spec, stage)]
        names = {stage.name for stage in own}
        for stage in own:
            if not names & set(stage.needs):
                yield Edge(source=f"role {role}", target=f"stage {stage.name}", carries="rows")
        yield Edge(source=f"role {role}", target=f"buffer {policy}", carries="rows")
    for stage in spec.stages:
        yield from (
            Edge(source=f"stage {need}", target=f"stage {stage.name}", carries=_flow(spec, need))
            for need in stage.needs
        )
        for policy in rows_of(spec, stage):
            yield Edge(source=f"stage {stage.name}", target=f"buffer {policy}", carries=_flow(spec, stage.name))


def _flow(spec: RLJobSpec, name: str) -> str:
    return _FLOWS[next(stage for stage in spec.stages if stage.name == name).computes]


def _batches(spec: RLJobSpec) -> Iterator[Edge]:
    mixed = {mix.policy: mix.streams for mix in spec.data.mix}
    for policy in spec.learning:
        streams = [stream.policy for stream in mixed[policy.name]] if policy.name in mixed else [policy.name]
        for stream in streams:
            yield Edge(source=f"buffer {stream}", target=f"trainer {policy.name}", carries="batches")


def _weights(spec: RLJobSpec) -> Iterator[Edge]:
    for policy in spec.learning:
        weights = f"weights {policy.name}"
        yield Edge(source=f"trainer {policy.name}", target=weights, carries="versions")
        for role, spoken in roles_of(spec).items():
            if spoken == policy.name:
                yield Edge(source=weights, target=f"role {role}", carries="weights")
        for stage in spec.stages:
            if stage.policy == policy.name:
                yield Edge(source=weights, target=f"stage {stage.name}", carries="weights")


def _places(pools: Iterable[JobPool]) -> str:
    return ", ".join(f"pool {pool.name} ({_pods(pool.replicas)}, {pool.engine.name})" for pool in pools)


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"
