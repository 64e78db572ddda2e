"""`python -m trimtab.rollout`: the worker of a rollout pod. Its engines run beside it and are reached over loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from traceback import FrameSummary
from typing import NoReturn

import structlog
from pydantic import Field, SecretStr

from trimtab.api.job import RLJob
from trimtab.api.placement import policies_of, roles_of
from trimtab.api.pool import MISSING_ENGINE, JobPool
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.members import beat
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.pod import (
    EXIT_MISCONFIGURED,
    JobMisconfigured,
    JobPodSettings,
    Pod,
    pod_settings,
    run_pod,
    running_pod,
)
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.settings import EngineSettings, PodSettings
from trimtab.fabric.signing import Verifier
from trimtab.fabric.wire.member import MemberHeartbeat, State
from trimtab.fabric.wire.member import Role as MemberRole
from trimtab.rollout.gateway.gateway import Gateway, running_gateway
from trimtab.rollout.gateway.tally import GatewayMetrics
from trimtab.rollout.policy.freshness import Freshness
from trimtab.rollout.refresh.swap import SwapMetrics
from trimtab.rollout.refresh.turns import PoolCensus
from trimtab.rollout.sandbox.client import PodSandbox
from trimtab.rollout.sandbox.contract import ProgramLimits
from trimtab.rollout.sandbox.report import SandboxReport
from trimtab.rollout.stages.metrics import StageWorkMetrics
from trimtab.rollout.stages.opening import StageSurroundings, stage_workers
from trimtab.rollout.worker.concurrency import Concurrency, LoadWatch
from trimtab.rollout.worker.deliveries import HandBacks, TaskServer
from trimtab.rollout.worker.episodes import GroupRunner, Origin
from trimtab.rollout.worker.metrics import RolloutMetrics, Throughput
from trimtab.rollout.worker.pod_work import PodWork
from trimtab.rollout.worker.quarantine import Quarantine
from trimtab.rollout.worker.served_engines import ServedEngines, served_engines
from trimtab.rollout.worker.served_policy import PodResources
from trimtab.rollout.worker.watchdog import LoopWatchdog
from trimtab.rollout.worker.worker import Worker
from trimtab.rollout.workflows.containment import Containment, contained_task
from trimtab.rollout.workflows.loader import load_workflow
from trimtab.rollout.workflows.source_location import WorkflowSource
from trimtab.weights.codec.compile import compile_beside

_log = structlog.get_logger(__name__)
ServedPolicies = dict[str, ServedEngines]
_HEARTBEAT_S = 3.0
_DECLARE_DEADLINE_S = 30.0
# No step of ours takes the event loop for this long.
_LOOP_BLOCKED_S = 2.0


class RolloutPodSettings(JobPodSettings):
    """`engines` gives each policy's engines, as policy=url pairs with commas between them; `engine` is for all, and
    `endpoint_keys` are those of policies that are asked elsewhere."""

    engines: str
    engine: EngineSettings = EngineSettings()
    endpoint_keys: dict[str, SecretStr] = Field(default_factory=dict)
    scratch: Path
    sandbox: Path | None = None
    """Where programs are taken to be run."""

    def engine_urls(self) -> dict[str, list[str]]:
        urls: dict[str, list[str]] = {}
        for pair in self.engines.split(","):
            policy, _, url = pair.partition("=")
            if url:
                urls.setdefault(policy, []).append(url)
        return urls


def trusted_keys(settings: RolloutPodSettings) -> Verifier:
    if not settings.weights.public_keys:
        raise JobMisconfigured("TRIMTAB_WEIGHTS__PUBLIC_KEYS: missing; without it no weights can be trusted")
    return Verifier(settings.weights.public_keys)


def pool_of(job: RLJob, pod: PodSettings) -> JobPool:
    return next(pool for pool in job.spec.pools if pool.name == pod.pool)


def sandbox_of(pod: Pod[RolloutPodSettings]) -> PodSandbox | None:
    asked, path = pod.job.spec.workflow.sandbox, pod.settings.sandbox
    if asked is None or path is None:
        return None
    limits = ProgramLimits(
        wall_s=asked.timeout_seconds,
        cpu_s=asked.timeout_seconds,
        memory_bytes=asked.memory_mib << 20,
        processes=asked.processes,
        disk_bytes=asked.disk_mib << 20,
        output_bytes=asked.output_kib << 10,
    )
    return PodSandbox(path, limits=limits, concurrency=asked.concurrency, clock=time.monotonic)


def end_hung(where: str, *, limit_s: float, is_new: bool) -> NoReturn:
    """End a worker whose event loop something blocks, from another thread: nothing on the loop could. Its tasks are
    given out again when their leases run out. In a job that has not brought anything about, it is the workflow that
    never works, and starting the pod again would not help.
    """
    reason = (
        f"the workflow blocks the event loop at {where} for more than its episodeTimeoutSeconds, {limit_s:g} s: await "
        "an async library there, or asyncio.to_thread"
    )
    _log.error("job_misconfigured" if is_new else "event_loop_hung", reason=reason)
    os._exit(EXIT_MISCONFIGURED if is_new else 1)


async def _main(settings: RolloutPodSettings) -> None:
    asyncio.get_running_loop().set_task_factory(contained_task)
    containment = Containment()
    async with AsyncExitStack() as stack:
        pod = await stack.enter_async_context(running_pod(settings, signals=(signal.SIGTERM, signal.SIGINT)))
        compile_beside(policy.trainer.dtype for policy in pod.job.spec.policies if not policy.frozen)
        metrics = RolloutMetrics(pod.metrics)
        store = await stack.enter_async_context(ObjectStore(settings.object_store))
        await declare_job(pod.bus, pod.topology, deadline_s=_DECLARE_DEADLINE_S, may_change=False)
        pool = pool_of(pod.job, settings.pod)
        members = KeyValue(pod.bus, pod.topology.members)
        swap_metrics = SwapMetrics(pod.metrics)
        resources = PodResources(
            member=settings.pod.name,
            pool=pool,
            folder=pod.folder,
            scratch=settings.scratch,
            api_key=settings.engine.api_key,
            endpoint_keys=settings.endpoint_keys,
            store=store,
            trusted=trusted_keys(settings),
            pointers=KeyValue(pod.bus, pod.topology.weights),
            swaps=KeyValue(pod.bus, pod.topology.swaps),
            census=PoolCensus(members, pool=pool.name, clock=time.monotonic),
            metrics=swap_metrics,
            resumed=pod.job.spec.resume_from is not None,
        )
        served: ServedPolicies = {}
        for policy in policies_of(pod.job.spec, pool, name=pool.name):
            engines = await served_engines(policy, settings.engine_urls().get(policy.name, ()), resources, stack)
            if engines is None:
                # An episode without one of its roles would leave the others waiting for its rows for ever, and a group
                # for its columns.
                raise JobMisconfigured(f"pool {pool.name} has no engine for policy {policy.name}{MISSING_ENGINE}")
            served[policy.name] = engines
        gateway = None
        if pool.rollouts:
            roles = tuple(roles_of(pod.job.spec))
            gateway = await stack.enter_async_context(
                running_gateway(roles=roles, metrics=GatewayMetrics(pod.metrics), clock=time.monotonic)
            )
        await _serve(pod, pool, served, members, containment, metrics, swap_metrics, RowClaims(store), gateway)
    if containment.left_behind:
        # Everything is handed back and closed. asyncio would wait for these until the pod is killed.
        os._exit(0)


async def _serve(
    pod: Pod[RolloutPodSettings],
    pool: JobPool,
    served: ServedPolicies,
    members: KeyValue,
    containment: Containment,
    metrics: RolloutMetrics,
    swap_metrics: SwapMetrics,
    claims: RowClaims,
    gateway: Gateway | None,
) -> None:
    """`gateway` is there where episodes are run."""
    spec = pod.job.spec
    sandbox = sandbox_of(pod) if pool.rollouts else None
    sandbox_report = SandboxReport(sandbox)
    # A frozen policy has no version that could be too old, and none to tell of.
    lines = {name: policy.line for name, policy in served.items() if not policy.policy.frozen}
    origin = Origin(worker=pod.settings.pod.name, pool=pool.name, engine=pool.engine.name)
    concurrency = Concurrency(
        ceiling=max(1, pool.max_concurrency // spec.data.group_size), requests_per_task=spec.data.group_size
    )
    freshness = Freshness(lines, max_staleness=spec.data.max_staleness)
    quarantine = Quarantine(
        KeyValue(pod.bus, pod.topology.quarantine), origin, job=pod.settings.pod.job, clock=time.time
    )
    stages = stage_workers(
        StageSurroundings(
            job=pod.job,
            pool=pool,
            folder=pod.folder,
            bus=pod.bus,
            topology=pod.topology,
            claims=claims,
            quarantine=quarantine,
            origin=origin,
            containment=containment,
            freshness=freshness,
            metrics=StageWorkMetrics(pod.metrics),
        ),
        served,
    )
    rollouts, source = None, stages[0].server.source if stages else WorkflowSource(None)
    if pool.rollouts:
        named = roles_of(spec)
        workflow = load_workflow(spec.workflow, folder=pod.folder, roles=named)
        source = WorkflowSource(workflow)
        runner = GroupRunner(
            workflow,
            {name: served[policy].role(name) for name, policy in named.items()},
            origin,
            containment,
            metrics,
            gateway=gateway,
            sandbox=sandbox,
            episode_timeout_s=spec.workflow.episode_timeout_seconds,
            clock=time.time,
        )
        server = TaskServer(
            pod.bus,
            pod.topology,
            runner,
            quarantine,
            HandBacks(KeyValue(pod.bus, pod.topology.hand_backs)),
            freshness,
            metrics,
            claims,
            lease_s=spec.data.tasks.lease_seconds,
            max_deliveries=spec.data.tasks.max_deliveries,
            clock=time.monotonic,
        )
        rollouts = Worker(
            pod.bus,
            pod.topology,
            server,
            freshness,
            concurrency,
            lease_s=spec.data.tasks.lease_seconds,
            grace_s=pool.grace_period_seconds,
            clock=time.monotonic,
        )
    work = PodWork(rollouts, stages, most_tasks=concurrency.ceiling)
    metrics.watch(work, lines)
    throughput = Throughput(clock=time.monotonic)
    started = time.time()

    def heartbeat() -> MemberHeartbeat:
        ready = all(policy.is_ready for policy in served.values())
        tokens = sum(policy.sampler.sampled_tokens + policy.scorer.scored_tokens for policy in served.values())
        rates = throughput.since_last(samples=work.completed, tokens=tokens)
        return MemberHeartbeat(
            member_id=pod.settings.pod.name,
            job=pod.settings.pod.job,
            role=MemberRole.ROLLOUT,
            pool=pool.name,
            engine=pool.engine.name,
            state=State.DRAINING if work.draining else State.READY if ready else State.STARTING,
            versions={name: line.version for name, line in lines.items()},
            in_flight=work.in_flight,
            mean_in_flight=work.mean_in_flight(),
            capacity=work.capacity,
            allowance=work.allowance,
            samples_per_second=rates.samples,
            tokens_per_second=rates.tokens,
            completed=work.completed,
            failures=dict(work.failures),
            measures=dict(swap_metrics.newest),
            sandbox=sandbox_report.now,
            started_at=started,
            sent_at=time.time(),
        )

    pod.probes.add_check(
        "weights",
        lambda: None if all(policy.is_ready for policy in served.values()) else "engine not ready",
    )

    def hung(calls: Sequence[FrameSummary]) -> None:
        where = source.location_in(calls)
        trained = any(policy.announcements.newest for policy in served.values())
        end_hung(where, limit_s=spec.workflow.episode_timeout_seconds, is_new=not (work.completed or trained))

    watch = LoopWatchdog(
        limit_s=_LOOP_BLOCKED_S,
        blocked=metrics.loop_blocked,
        hung_after_s=spec.workflow.episode_timeout_seconds + _LOOP_BLOCKED_S,
        hung=hung,
        clock=time.monotonic,
    )
    async with asyncio.TaskGroup() as loops:
        seats = {name: seat for policy in served.values() for name, seat in policy.named_seats().items()}
        background = [loops.create_task(seat.refresh.run()) for seat in seats.values()]
        for name, seat in seats.items():
            load = LoadWatch(name, seat.engine, seat.sampler, seat.gate, concurrency, in_flight=lambda: work.load)
            background.append(loops.create_task(load.run()))
        background.append(loops.create_task(sandbox_report.run()))
        background.append(loops.create_task(beat(members, heartbeat, every_s=_HEARTBEAT_S)))
        await _until_ready(served, pod.stopping)
        with watch:
            await work.run(pod.stopping)
        for task in background:
            task.cancel()


async def _until_ready(served: ServedPolicies, stopping: asyncio.Event) -> None:
    """Take no task before the engines serve: it would only wait here instead of going to a worker that is ready."""
    stop = asyncio.create_task(stopping.wait())
    for policy in served.values():
        ready = asyncio.create_task(policy.ready())
        await asyncio.wait({ready, stop}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
    stop.cancel()


if __name__ == "__main__":
    run_pod(_main(pod_settings(RolloutPodSettings)))
