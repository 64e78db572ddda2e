"""The operator as a whole: the lease first, then the watches, then the work, until a signal or the lease is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial

import structlog

from trimtab.api import labels
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.fabric.bus.users.mint import AccountMint
from trimtab.fabric.logs import REDACTOR
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.probes import Probes
from trimtab.kube.access import ClusterAccess
from trimtab.kube.client import KubeClient
from trimtab.kube.events import EventRecorder
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import CONFIG_MAPS, PODS, RLJOBS, ROLLOUT_POOLS, TRAINERS, Key, Object, Resource
from trimtab.operator import event_reasons as reasons
from trimtab.operator.admission.webhook import serve_admission
from trimtab.operator.autoscale.agent.egress import Egress
from trimtab.operator.autoscale.agent.maintainer import AgentMaintainers, read_api_key
from trimtab.operator.autoscale.agent.proposal import AgentReply, NotProposed, Proposed
from trimtab.operator.autoscale.agent.transcripts import TranscriptFolder
from trimtab.operator.key_root import open_root
from trimtab.operator.leadership import Leadership, LeadershipLost
from trimtab.operator.metrics import OperatorMetrics
from trimtab.operator.nats_accounts import job_buses, open_mint
from trimtab.operator.pods.job_keys import KeyRoot
from trimtab.operator.reconcile.cache import ObjectCache, TypedCache
from trimtab.operator.reconcile.cluster import Cluster, by_job_ref, by_name, by_owner_and_job
from trimtab.operator.reconcile.controller import Controller
from trimtab.operator.reconcile.job_watches import JobWatches
from trimtab.operator.remote.links import Links
from trimtab.operator.remote.pool import RemotePoolReconciler
from trimtab.operator.settings import OperatorSettings
from trimtab.operator.storage_mint import StorageMint

_log = structlog.get_logger(__name__)
_SYNC_TIMEOUT_S = 120.0
_BEAT_S = 1.0
_EXIT_LOST = 1

Index = Callable[[Object], Iterable[Hashable]]


async def run_operator(settings: OperatorSettings, access: ClusterAccess) -> None:
    """Returns after SIGTERM or SIGINT. Ends the process at once when the lease is lost."""
    metrics = Metrics()
    own = OperatorMetrics(metrics)
    probes = Probes(settings.probes, metrics, REDACTOR, clock=time.monotonic)
    async with KubeClient(access, user_agent="trimtab-operator", on_request=own.request) as client, probes:
        beating = asyncio.create_task(_beat(probes))
        leadership = Leadership(
            client,
            namespace=settings.lease.namespace or access.namespace,
            name=settings.lease.name,
            identity=settings.identity,
            duration_s=settings.lease.duration_s,
            wall=time.time,
            monotonic=time.monotonic,
        )
        try:
            # Before the lease: NATS may wait for the account while another operator leads.
            mint = await open_mint(settings.nats_accounts, client, clock=time.time)
            key_root = await open_root(settings.job_keys, client)
            told_to_stop = asyncio.Event()
            for signum in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(signum, told_to_stop.set)
            # Every replica answers the API server, whichever of them leads.
            admission = asyncio.create_task(
                serve_admission(settings.admission, access, client, on_review=own.reviewed, told_to_stop=told_to_stop),
                name="admission",
            )
            if await _acquired(leadership, unless=admission):
                _log.info("leading", identity=settings.identity)
                with own.leading():
                    await _lead(settings, client, leadership, probes, own, mint, key_root, admission)
                await leadership.release()
        finally:
            beating.cancel()


async def _acquired(leadership: Leadership, *, unless: asyncio.Task[None]) -> bool:
    acquiring = asyncio.create_task(leadership.acquire(), name="lease")
    await asyncio.wait({acquiring, unless}, return_when=asyncio.FIRST_COMPLETED)
    if acquiring.done():
        acquiring.result()
        return True
    acquiring.cancel()
    await asyncio.gather(acquiring, return_exceptions=True)
    return False


async def _lead(
    settings: OperatorSettings,
    client: KubeClient,
    leadership: Leadership,
    probes: Probes,
    metrics: OperatorMetrics,
    mint: AccountMint | None,
    key_root: KeyRoot | None,
    admission: asyncio.Task[None],
) -> None:
    """Until the webhook ends, which it does when the operator is told to stop."""
    holding = asyncio.create_task(leadership.hold(), name="lease")
    holding.add_done_callback(_leave_at_once)
    watches = JobWatches(
        job_buses(settings, mint), interval_s=settings.report_interval_s, sync=settings.nats_sync_interval
    )
    events = EventRecorder(client, component="trimtab-operator", instance=settings.identity, clock=time.time)
    links = Links(client, settings=settings.remote, installation=leadership.lease_uid, metrics=metrics)
    remote = RemotePoolReconciler(links)
    maintainers = AgentMaintainers(
        read_key=partial(read_api_key, client),
        transcripts=TranscriptFolder(settings.transcripts.folder, newest=settings.transcripts.newest),
        on_reply=lambda key, reply: _record_reply(cluster, controller, key, reply),
        egress=Egress(allowed=settings.agent_egress.networks),
    )
    cluster = made_cluster(
        settings,
        client,
        events=events,
        watches=watches,
        maintainers=maintainers,
        remote=remote,
        mint=mint,
        key_root=key_root,
    )
    controller = Controller(cluster, metrics)
    watches.listen(controller.wake_job)
    reflectors = [
        reflector
        for cache in (cluster.jobs, cluster.pools, cluster.trainers, cluster.pods, cluster.config_maps)
        for reflector in cache.reflectors
    ]
    probes.add_check("watches", lambda: next((str(one.failure) for one in reflectors if one.failure), None))
    tasks = [
        asyncio.create_task(reflector.run(), name=f"watch {reflector.resource.plural}") for reflector in reflectors
    ]
    tasks += [asyncio.create_task(events.run(), name="events"), asyncio.create_task(watches.run(), name="job watches")]
    try:
        for reflector in reflectors:
            await reflector.synced(timeout_s=_SYNC_TIMEOUT_S)
        tasks.append(asyncio.create_task(controller.run(), name="controller"))
        tasks.append(asyncio.create_task(remote.run(cluster.pools), name="links"))
        _log.info("operator_ready", namespaces=settings.namespaces or "all")
        done, _ = await asyncio.wait({admission, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        holding.remove_done_callback(_leave_at_once)
        await maintainers.close()
        for task in (holding, *tasks):
            task.cancel()
        await asyncio.gather(holding, *tasks, return_exceptions=True)


def _leave_at_once(holding: asyncio.Task[None]) -> None:
    """Another operator may be at work: no clean-up, no last request."""
    if holding.cancelled():
        return
    error = holding.exception()
    if isinstance(error, LeadershipLost):
        _log.error("leadership_lost", reason=str(error))
    else:
        _log.error("lease_failed", error=repr(error))
    os._exit(_EXIT_LOST)


def _record_reply(cluster: Cluster, controller: Controller, key: Key, reply: AgentReply) -> None:
    """The audit trail: what an agent said, or why it said nothing, and where to read more."""
    controller.wake_job(key)
    job = cluster.jobs.get(key)
    if job is None:
        return
    more = f" (transcript {reply.transcript})" if reply.transcript else ""
    match reply:
        case Proposed(proposal=proposal):
            sizes = ", ".join(f"{pool} {size}" for pool, size in sorted(proposal.targets.items()))
            cluster.events.record(job, "Normal", reasons.AGENT_PROPOSED, f"{sizes}: {proposal.reason}{more}")
        case NotProposed():
            message = f"{reply.text}; the policy decides{more}"
            cluster.events.record(job, "Warning", reply.cause, message)


def made_cluster(
    settings: OperatorSettings,
    client: KubeClient,
    *,
    events: EventRecorder,
    watches: JobWatches,
    maintainers: AgentMaintainers,
    remote: RemotePoolReconciler,
    mint: AccountMint | None,
    key_root: KeyRoot | None,
) -> Cluster:
    def reflected(resource: Resource, *, ours: bool = False) -> Mapping[str | None, Reflector]:
        places: tuple[str | None, ...] = settings.namespaces or (None,)
        selector = labels.JOB if ours else None
        return {place: Reflector(client, resource, namespace=place, label_selector=selector) for place in places}

    clock = time.monotonic
    return Cluster(
        client=client,
        settings=settings,
        jobs=TypedCache(RLJOBS, reflected(RLJOBS), RLJob, index=by_name, clock=clock),
        pools=TypedCache(ROLLOUT_POOLS, reflected(ROLLOUT_POOLS), RolloutPool, index=by_job_ref, clock=clock),
        trainers=TypedCache(TRAINERS, reflected(TRAINERS), Trainer, index=by_job_ref, clock=clock),
        pods=ObjectCache(PODS, reflected(PODS, ours=True), index=by_owner_and_job, clock=clock),
        config_maps=ObjectCache(CONFIG_MAPS, reflected(CONFIG_MAPS, ours=True), index=by_owner_and_job, clock=clock),
        events=events,
        watches=watches,
        remote=remote,
        maintainers=maintainers,
        mint=mint,
        key_root=key_root,
        storage=None
        if settings.storage_roles is None
        else StorageMint(settings.storage_roles, settings.object_store, clock=time.time),
        clock=time.time,
    )


async def _beat(probes: Probes) -> None:
    """The loop is alive as long as this task gets its turn."""
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            probes.beat()
            await asyncio.sleep(_BEAT_S)
