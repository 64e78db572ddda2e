"""Makes the workers of the stages that a pod runs, each with what computes it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab.api.job import RLJob
from trimtab.api.placement import rows_of, stages_of
from trimtab.api.pool import JobPool
from trimtab.api.stage import Stage
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.row_claims import RowClaims
from trimtab.rollout.policy.freshness import Freshness
from trimtab.rollout.stages.columns import ColumnStore
from trimtab.rollout.stages.computed import Computation
from trimtab.rollout.stages.custom import OwnColumn
from trimtab.rollout.stages.group import GroupReader
from trimtab.rollout.stages.logprobs import Logprobs
from trimtab.rollout.stages.metrics import StageWorkMetrics
from trimtab.rollout.stages.plugin import PluginCalls, load_plugin
from trimtab.rollout.stages.reward import ModelReward, OwnReward
from trimtab.rollout.stages.row_filter import OwnFilter
from trimtab.rollout.stages.server import StageServer, StageWork
from trimtab.rollout.stages.turn_rewards import ModelTurnRewards, OwnTurnRewards
from trimtab.rollout.stages.values import Values
from trimtab.rollout.stages.worker import StageWorker
from trimtab.rollout.worker.deliveries import WORKER_TIMINGS, HandBacks
from trimtab.rollout.worker.episodes import Origin
from trimtab.rollout.worker.quarantine import Quarantine
from trimtab.rollout.worker.served_engines import ServedEngines
from trimtab.rollout.worker.served_policy import read_tokenizer
from trimtab.rollout.workflows.containment import Containment
from trimtab.rollout.workflows.source_location import WorkflowSource

_OWN: Mapping[str, Callable[[PluginCalls], Computation]] = {
    "Reward": OwnReward,
    "TurnRewards": OwnTurnRewards,
    "Filter": OwnFilter,
    "Custom": OwnColumn,
}


@dataclass(frozen=True, kw_only=True)
class StageSurroundings:
    """What all stages of a pod have in common."""

    job: RLJob
    pool: JobPool
    folder: Path
    bus: Bus
    topology: JobTopology
    claims: RowClaims
    quarantine: Quarantine
    origin: Origin
    containment: Containment
    freshness: Freshness
    metrics: StageWorkMetrics


def stage_workers(around: StageSurroundings, served: Mapping[str, ServedEngines]) -> list[StageWorker]:
    """One for each stage of the pod's pool. Raises JobMisconfigured for code that cannot be had."""
    spec, pool = around.job.spec, around.pool
    reader = GroupReader(around.bus, around.topology, around.claims)
    columns = ColumnStore(
        around.bus,
        around.topology,
        around.claims,
        around.metrics,
        around.origin,
        clock=time.time,
        new_run=lambda: secrets.token_hex(8),
        deadline_s=WORKER_TIMINGS.publish_deadline_s,
        backoff=WORKER_TIMINGS.publish_backoff,
    )
    hand_backs = HandBacks(KeyValue(around.bus, around.topology.hand_backs), queue="stages")
    return [
        StageWorker(
            around.bus,
            around.topology,
            StageServer(
                _work(around, served, stage),
                reader,
                columns,
                around.quarantine,
                hand_backs,
                around.freshness,
                around.metrics,
                lease_s=spec.data.tasks.lease_seconds,
                max_deliveries=spec.data.tasks.max_deliveries,
                clock=time.monotonic,
                wall_clock=time.time,
            ),
            ceiling=max(1, pool.max_concurrency // spec.data.group_size),
            lease_s=spec.data.tasks.lease_seconds,
            grace_s=pool.grace_period_seconds,
            clock=time.monotonic,
        )
        for stage in stages_of(spec, pool, name=pool.name)
    ]


def _work(around: StageSurroundings, served: Mapping[str, ServedEngines], stage: Stage) -> StageWork:
    plugin = None
    if stage.plugin is not None:
        plugin = load_plugin(stage, around.job.spec.workflow, folder=around.folder)
    return StageWork(
        stage=stage, computation=_computation(around, served, stage, plugin), source=WorkflowSource(plugin)
    )


def _computation(
    around: StageSurroundings, served: Mapping[str, ServedEngines], stage: Stage, plugin: object | None
) -> Computation:
    asked = None if stage.policy is None else served[stage.policy]
    if plugin is not None:
        policies = {policy.name: policy for policy in around.job.spec.policies}
        calls = PluginCalls(
            plugin,
            around.containment,
            per=stage.per,
            tokenizers={
                name: read_tokenizer(policies[name], folder=around.folder) for name in rows_of(around.job.spec, stage)
            },
            role=None if asked is None else asked.role(asked.policy.name),
            seed=around.job.spec.data.seed,
        )
        return _OWN[stage.computes](calls)
    assert asked is not None, f"stage {stage.name} has neither plugin nor policy"
    learns = not asked.policy.frozen
    if stage.computes == "Logprobs":
        return Logprobs(asked.scorer, temperature=asked.policy.sampling.temperature, learns=learns)
    if stage.computes == "Values":
        return Values(asked.scorer, learns=learns)
    by_model = ModelReward if stage.computes == "Reward" else ModelTurnRewards
    return by_model(asked.scorer, learns=learns)
