"""`torchrun … -m trimtab.trainer`: one rank of a policy's trainer."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType

import structlog
import torch
import torch.distributed as dist

from trimtab.api.policy import Policy
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.members import beat
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.parent_death import die_with_launcher
from trimtab.fabric.pod import (
    EXIT_MISCONFIGURED,
    JobMisconfigured,
    Pod,
    pod_settings,
    running_pod,
)
from trimtab.fabric.readable import unreadable
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.set_aside import SetAsideRecords
from trimtab.fabric.wire.member import SKIPPED_STEPS, UNARCHIVED_STEPS, MemberHeartbeat, Role, State
from trimtab.trainer import ranks
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.archiver import ArchiveMetrics, SampleArchiver
from trimtab.trainer.background import Background
from trimtab.trainer.batch_stream import BatchStream, RankIdentity
from trimtab.trainer.checkpoints.index import CheckpointDamaged
from trimtab.trainer.checkpoints.origin import open_origin
from trimtab.trainer.checkpoints.registry import open_seal, open_storage
from trimtab.trainer.checkpoints.resume import begin_at, meet_ledger, resume
from trimtab.trainer.checkpoints.saver import CheckpointSaver
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.claim_collection import ClaimCollector
from trimtab.trainer.learner import Learner, UnsupportedAlgorithm
from trimtab.trainer.loop import TrainingLoop
from trimtab.trainer.losses.recipe import Recipe
from trimtab.trainer.metrics import TrainerMetrics
from trimtab.trainer.network.model_files import UnsupportedModel
from trimtab.trainer.publisher import open_publisher
from trimtab.trainer.rank_exchange import RankExchange
from trimtab.trainer.rank_place import RankPlace, TrainerPodSettings
from trimtab.trainer.recipes import policy_recipe
from trimtab.trainer.stall_watch import StallWatch
from trimtab.weights.codec.compile import compile_beside

_log = structlog.get_logger(__name__)
_DECLARE_DEADLINE_S = 30.0
_HEARTBEAT_S = 3.0
_ARCHIVE_DRAIN_S = 20.0
_COLLECTIVE_TIMEOUT = timedelta(minutes=10)
# Before a collective gives up, the log says where it stood.
_STALLED_S = 300.0


class Connections:
    """What the background loop holds open while the main thread trains."""

    def __init__(self, pod: Pod[TrainerPodSettings], store: ObjectStore, pointers: KeyValue, members: KeyValue) -> None:
        self.pod = pod
        self.store = store
        self.pointers = pointers
        self.members = members


async def _connect(settings: TrainerPodSettings, stack: AsyncExitStack) -> Connections:
    # Signals belong to the main thread, which asks `stopping` between steps.
    pod = await stack.enter_async_context(running_pod(settings, signals=()))
    store = await stack.enter_async_context(ObjectStore(settings.object_store))
    await declare_job(pod.bus, pod.topology, deadline_s=_DECLARE_DEADLINE_S, may_change=False)
    return Connections(pod, store, KeyValue(pod.bus, pod.topology.weights), KeyValue(pod.bus, pod.topology.members))


def main() -> None:
    die_with_launcher()
    place = RankPlace.of(os.environ)
    settings = place.own(pod_settings(TrainerPodSettings, rank=str(place.rank)))
    stop = threading.Event()

    def on_signal(signum: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    torch.set_num_threads(settings.threads)
    try:
        _run(settings, place=place, stop=stop)
    except JobMisconfigured as error:
        _log.error("job_misconfigured", reason=str(error))
        sys.exit(EXIT_MISCONFIGURED)
    except CheckpointDamaged as error:
        # It would be just as damaged for the next attempt: this takes a person.
        _log.error("checkpoint_damaged", reason=str(error))
        sys.exit(EXIT_MISCONFIGURED)


def _run(settings: TrainerPodSettings, *, place: RankPlace, stop: threading.Event) -> None:
    device = place.device()
    if place.world_size > 1 or device.type == "cuda":
        # What is decided over all ranks is decided in main memory, whatever the model lies in.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT)
    with Background() as background:
        stack = AsyncExitStack()
        connections = background.run(_connect(settings, stack))
        try:
            _train(settings, connections, background, stack, place=place, device=device, stop=stop)
        finally:
            background.run(stack.aclose())
    if dist.is_initialized():
        dist.destroy_process_group()


def _train(
    settings: TrainerPodSettings,
    connections: Connections,
    background: Background,
    stack: AsyncExitStack,
    *,
    place: RankPlace,
    device: torch.device,
    stop: threading.Event,
) -> None:
    rank = place.rank
    pod = connections.pod
    policy = next(policy for policy in pod.job.spec.policies if policy.name == settings.pod.policy)
    compile_beside([policy.trainer.dtype])
    source = pod.job.spec.workflow.source
    code = None if source is None or source.path is None else pod.folder / source.path
    recipe = policy_recipe(policy, folder=code)
    learner = _learner(policy, recipe, folder=pod.folder, device=device)
    storage = background.run(
        open_storage(policy, settings, store=connections.store, job_folder=pod.folder, stack=stack)
    )
    checkpoints = CheckpointStore(storage, open_seal(policy, settings), keep=policy.trainer.checkpoint.keep)
    archive = pod.job.spec.data.archive
    archiver = None
    if archive is not None:
        archiver = SampleArchiver(
            connections.store,
            ArchiveMetrics(pod.metrics),
            policy=policy.name,
            rank=rank,
            keep_steps=archive.keep_steps,
        )
    set_aside = SetAsideRecords(pod.metrics)
    set_aside.watch("trajectories")
    stream = BatchStream(
        pod.bus,
        pod.topology.batch_subject(policy.name),
        RankIdentity(
            job=settings.pod.job, policy=policy.name, rank=rank, world_size=place.world_size, attempt=settings.attempt
        ),
        advantages=AdvantageRule.of(policy, recipe),
        clock=time.time,
        claims=RowClaims(connections.store),
        limits=learner.row_limits,
        columns_by_rows=frozenset(stage.name for stage in pod.job.spec.stages if stage.computes == "Custom"),
        on_set_aside=partial(set_aside.note, "trajectories"),
        on_rows=(lambda _lease, _payloads: None) if archiver is None else archiver.note,
    )
    evaluation = pod.job.spec.evaluation
    publisher = background.run(
        open_publisher(
            connections.store,
            connections.pointers,
            policy,
            settings,
            pools=pod.job.spec.pools,
            attempt=settings.attempt,
            scratch=settings.scratch,
            stack=stack,
            group=RankExchange(),
            ask_best=stream.best_versions if evaluation is not None and evaluation.keep_best else None,
        )
    )
    if rank == 0:
        background.run(checkpoints.claim(publisher.epoch))
    # No rank writes, or looks where to go on, before the checkpoints are claimed.
    ranks.wait_for_all()
    if rank != 0:
        background.run(checkpoints.follow(publisher.epoch, rank=rank))
    resumed, wanted = resume(learner, checkpoints, background, rank=rank), pod.job.spec.resume_from
    if not resumed and wanted is not None:
        origin = background.run(open_origin(policy, wanted, settings, job_folder=pod.folder, stack=stack))
        begin_at(learner, origin, background, rank=rank)
    background.run(
        meet_ledger(stream, step=learner.step, proof=checkpoints.proof, where=storage.pointer, stopping=stop.is_set)
    )
    started = time.time()
    metrics = TrainerMetrics(pod.metrics)
    saver = CheckpointSaver(learner, checkpoints, background, rank=rank, acknowledge=stream.acknowledge)
    if not resumed and wanted is not None:
        # From here on the job begins at a checkpoint of its own, whatever becomes of the other one's.
        saver.begin(lease_id="")
        saver.flush()

    def heartbeat() -> MemberHeartbeat:
        return MemberHeartbeat(
            member_id=settings.pod.name,
            job=settings.pod.job,
            role=Role.TRAINER,
            state=State.STOPPING if stop.is_set() else State.READY,
            versions={policy.name: learner.step},
            tokens_per_second=metrics.tokens_per_second,
            failures=_failures(metrics, archiver),
            measures=dict(metrics.newest),
            checkpoint_step=saver.durable_step,
            started_at=started,
            sent_at=time.time(),
        )

    loops = []
    if place.leads_pod:
        # A pod is one member, whatever the number of its ranks.
        loops.append(background.start(beat(connections.members, heartbeat, every_s=_HEARTBEAT_S)))
    if rank == 0:
        collector = ClaimCollector(
            connections.store, pod.bus, stream=pod.topology.trajectories.name, policy=policy.name, clock=time.time
        )
        loops.append(background.start(collector.run()))
    if archiver is not None:
        loops.append(background.start(archiver.run()))
    watch = StallWatch(limit_s=_STALLED_S, clock=time.monotonic)
    loop = TrainingLoop(
        learner,
        stream,
        saver,
        publisher,
        background,
        metrics,
        policy=policy,
        max_staleness=pod.job.spec.data.max_staleness,
        stopping=stop.is_set,
        moved=watch.moved,
    )
    try:
        with watch:
            loop.run()
        if archiver is not None:
            background.run(archiver.drain(deadline_s=_ARCHIVE_DRAIN_S))
        if not stop.is_set():
            background.run(publisher.finish())
    finally:
        for running in loops:
            running.cancel()


def _failures(metrics: TrainerMetrics, archiver: SampleArchiver | None) -> dict[str, int]:
    """What the heartbeat tells the operator."""
    lost = 0 if archiver is None else archiver.lost_steps
    counts = {SKIPPED_STEPS: metrics.skipped_steps, UNARCHIVED_STEPS: lost}
    return {name: count for name, count in counts.items() if count}


def _learner(policy: Policy, recipe: Recipe, *, folder: Path, device: torch.device) -> Learner:
    """Of the model that the manifest names. Raises JobMisconfigured when it cannot be had."""
    field, reference = f"policies[{policy.name}]", policy.algorithm.kl.reference
    model_path, reference_path = folder / policy.weights.uri, None if reference is None else folder / reference
    for of, path in (("model.uri", model_path), ("algorithm.kl.reference", reference_path)):
        if path is not None and (why := unreadable(path)):
            raise JobMisconfigured(f"{field}.{of}: {why}")
    try:
        return Learner(policy, model_path=model_path, reference_path=reference_path, recipe=recipe, device=device)
    except (UnsupportedAlgorithm, UnsupportedModel) as error:
        raise JobMisconfigured(str(error)) from None


if __name__ == "__main__":
    main()
