"""The dataflow of one job, from recovery to its loops. Each loop is small and meets the others only in the books."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import structlog

from trimtab.api.data import Data, Filter
from trimtab.api.job import RLJob, RLJobSpec
from trimtab.api.scalars import Plugin
from trimtab.dataflow.anchoring import Anchoring, AnchorMetrics
from trimtab.dataflow.batches import BatchServer
from trimtab.dataflow.curators.registry import CuratorState, make_curator
from trimtab.dataflow.evaluation.baseline import Baseline
from trimtab.dataflow.evaluation.benchmarks import read_benchmarks
from trimtab.dataflow.evaluation.evaluator import EvaluationGauges, Evaluator, PublishedVersions
from trimtab.dataflow.filters import make_filter
from trimtab.dataflow.finish import Finisher, continued
from trimtab.dataflow.intake import FilterLoop, Intake
from trimtab.dataflow.issuer import Issuer
from trimtab.dataflow.ledger.authorship import JournalKey
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.journal import Journal, JournalMaker
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.lost_rows import Remains, given_up
from trimtab.dataflow.ledger.records import Record, SettingsTaken, StreamsRouted
from trimtab.dataflow.prompts.sources import read_prompts
from trimtab.dataflow.queue_reconciler import QueueMetrics, QueueReconciler
from trimtab.dataflow.reporter import BalanceGauges, Reporter
from trimtab.dataflow.selection.contract import Selection
from trimtab.dataflow.selection.registry import make_selection
from trimtab.dataflow.signs_of_life import SignsOfLife
from trimtab.dataflow.stage_intake import ColumnIntake
from trimtab.dataflow.stage_issuer import StageIssuer
from trimtab.dataflow.stage_metrics import StageMetrics
from trimtab.dataflow.storage import Storage, StorageMetrics
from trimtab.dataflow.tenure import Tenure
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.requests import serve
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.members import MemberTable
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.plugins import load_class
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.set_aside import SetAsideRecords
from trimtab.fabric.settings import ObjectStoreSettings

_log = structlog.get_logger(__name__)
_DECLARE_DEADLINE_S = 30.0
_COMPACTION_IDLE_S = 5.0
# Every rank that waits for rows waits in a request of its own.
_BATCH_CONCURRENCY = 8192
# A request waits for rows and for a handful of records; one cut off in the middle of a record breaks the books.
_BATCH_DEADLINE_S = 180.0


async def run_dataflow(
    job: RLJob,
    bus: Bus,
    topology: JobTopology,
    *,
    folder: Path,
    member_id: str,
    incarnation: str,
    journal_key: JournalKey,
    clock: Callable[[], float],
    metrics: Metrics,
    object_store: ObjectStoreSettings | None = None,
    scratch: Path | None = None,
    make_journal: JournalMaker = Journal,
    checkpoint_keys: Sequence[str] = (),
) -> None:
    """Serve the job until cancelled. `folder` is what relative paths in the manifest are relative to. Prompts in object
    storage need `object_store`, and `scratch` to be kept in. `checkpoint_keys` are the public keys of its trainers."""
    life = SignsOfLife(member_id=member_id, job=job.metadata.name, clock=clock)
    serving = _serve_job(
        job,
        bus,
        topology,
        life=life,
        folder=folder,
        incarnation=incarnation,
        journal_key=journal_key,
        clock=clock,
        metrics=metrics,
        object_store=object_store,
        scratch=scratch,
        make_journal=make_journal,
        checkpoint_keys=checkpoint_keys,
    )
    await life.during(serving, KeyValue(bus, topology.members))


async def _serve_job(
    job: RLJob,
    bus: Bus,
    topology: JobTopology,
    *,
    life: SignsOfLife,
    folder: Path,
    incarnation: str,
    journal_key: JournalKey,
    clock: Callable[[], float],
    metrics: Metrics,
    object_store: ObjectStoreSettings | None,
    scratch: Path | None,
    make_journal: JournalMaker,
    checkpoint_keys: Sequence[str],
) -> None:
    prompts = await read_prompts(job, folder=folder, object_store=object_store, scratch=scratch)
    benchmarks = await read_benchmarks(job, folder=folder, object_store=object_store, scratch=scratch)
    await declare_job(bus, topology, deadline_s=_DECLARE_DEADLINE_S, may_change=False)
    data, stages = job.spec.data, job.spec.stages

    def loader(field: str) -> Callable[[Plugin], object]:
        return lambda plugin: load_class(plugin.entrypoint, plugin.args, field=field, folder=folder)

    # A curriculum looks at every prompt, which may take a while: in a thread, so that the pod stays alive.
    curator = await asyncio.to_thread(
        make_curator,
        data.curator,
        prompts=prompts.every(),
        load=loader("data.curator.custom"),
    )
    chosen_filter = make_filter(
        data.filter,
        load=loader("data.filter.custom"),
    )
    policies = [policy.name for policy in job.spec.learning]
    selection = make_selection(data, policies=policies, load=loader("data.selection"))
    ledger = Ledger(
        groups_per_task(job),
        selection=selection,
        group_size=data.group_size,
        batch_sizes={policy: job.spec.batch_size(policy) for policy in policies},
        max_staleness=data.max_staleness,
        window_steps=job.spec.autoscaling.window_steps,
        seed=data.seed,
        has_filters=data.filter != Filter(),
        witness=curator,
        stages=stages,
    )
    set_aside = SetAsideRecords(metrics)
    set_aside.watch("ledger", "trajectories", *(("columns",) if stages else ()))
    journal = make_journal(
        bus, topology, incarnation=incarnation, key=journal_key, on_foreign=partial(set_aside.note, "ledger")
    )
    curator_state = CuratorState(curator, data.curator)
    seen = await journal.recover(
        ledger, curator_state, settle=partial(settled, spec=job.spec, total_prompts=prompts.total, clock=clock)
    )
    books = Bookkeeper(ledger, journal)
    _log.info("recovered", issued=ledger.issued, steps={name: b.next_step for name, b in ledger.trainers.items()})
    await books.record(partial(begun, selection, taken_labels(data)))
    if (taken := await books.record(partial(changed_settings, job.spec, clock=clock))) is not None:
        _log.info("settings_taken", taken=str(taken))

    members_bucket = KeyValue(bus, topology.members)
    balance_bucket = KeyValue(bus, topology.balance)
    members = MemberTable(ttl_s=topology.member_ttl_s, clock=time.monotonic)
    reporter = Reporter(books, job, balance_bucket, members, BalanceGauges(metrics), clock=clock)
    anchor_metrics = AnchorMetrics(metrics)
    anchor_metrics.watch(policies)
    for record in seen.anchored:
        anchor_metrics.note(record)
    baseline = Baseline(job.spec, clock=time.monotonic)
    finisher = Finisher(job.spec, total_prompts=prompts.total, clock=time.monotonic)
    batches = BatchServer(
        books,
        stream=topology.trajectories.name,
        columns_stream=topology.columns.name if stages else None,
        clock=clock,
        max_steps=job.spec.max_steps,
        finish=finisher,
        held=lambda ledger, policy: baseline(ledger) or finisher.has_had_enough(ledger, policy),
        on_grant=reporter.granted,
        anchoring=Anchoring(
            books,
            anchor_metrics,
            job=f"{topology.namespace}/{topology.job}",
            public_keys=checkpoint_keys,
            clock=clock,
        ),
    )
    tenure = Tenure(books)
    life.ledger = ledger

    try:
        async with AsyncExitStack() as responders, asyncio.TaskGroup() as loops:
            responders.push_async_callback(books.close)
            # Before batches are served: whatever a request breaks ends the process, which then recovers.
            loops.create_task(books.broken())
            loops.create_task(tenure.run())
            for policy in job.spec.learning:
                responder = await serve(
                    bus,
                    topology.batch_subject(policy.name),
                    tenure.guarded(batches.answer),
                    # Each process hears every question: one that is dead, and that the server does not know to be,
                    # would have its share of them.
                    queue_group=incarnation,
                    concurrency=_BATCH_CONCURRENCY,
                    handler_deadline_s=_BATCH_DEADLINE_S,
                )
                responders.push_async_callback(responder.close, deadline_s=0.0)
            intake = Intake(
                bus,
                books,
                stream=topology.trajectories.name,
                after_sequence=seen.trajectories,
                on_unreadable=partial(set_aside.note, "trajectories"),
            )
            loops.create_task(intake.run())
            storage = Storage(bus, topology, books, StorageMetrics(metrics), clock=clock)
            loops.create_task(storage.run())
            issuer = Issuer(bus, topology, job, prompts, curator, books, held=storage.is_short, clock=clock)
            loops.create_task(issuer.run())
            stage_issuer = StageIssuer(bus, topology, job, prompts, benchmarks, books, clock=clock)
            if stages:
                stage_metrics = StageMetrics(metrics)
                stage_metrics.watch(ledger)
                columns = ColumnIntake(
                    bus,
                    books,
                    stage_metrics,
                    stream=topology.columns.name,
                    after_sequence=seen.columns,
                    on_unreadable=partial(set_aside.note, "columns"),
                )
                loops.create_task(columns.run())
                loops.create_task(stage_issuer.run())
            if ledger.has_filters:
                loops.create_task(FilterLoop(books, chosen_filter).run())
            loops.create_task(_compact(books, curator_state, storage))
            loops.create_task(reporter.run())
            sent = [issuer.sent]
            if job.spec.evaluation is not None:
                weights_bucket = KeyValue(bus, topology.weights)
                published = PublishedVersions(on_change=books.nudge)
                loops.create_task(published.follow(weights_bucket))
                evaluator = Evaluator(
                    bus,
                    topology,
                    job,
                    job.spec.evaluation,
                    benchmarks,
                    books,
                    published,
                    balance_bucket,
                    EvaluationGauges(metrics),
                    held=storage.is_short,
                    is_last=finisher.is_last,
                    clock=clock,
                )
                loops.create_task(evaluator.run())
                sent.append(evaluator.sent)
            queues = QueueReconciler(
                bus,
                topology,
                books,
                metrics=QueueMetrics(metrics),
                incarnation=incarnation,
                sent=lambda: set().union(*(sender() for sender in sent)),
                asked=stage_issuer.sent,
            )
            loops.create_task(queues.run())
            loops.create_task(members.follow(members_bucket))
    except ExceptionGroup as failures:
        # A plug-in or a prompt that cannot work: told apart, as starting again would not help.
        failure: Exception | None = failures.subgroup(JobMisconfigured)
        if failure is None:
            raise
        while isinstance(failure, ExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from None


async def _compact(books: Bookkeeper, curator_state: CuratorState, storage: Storage) -> None:
    """Keep the ledger short while the job runs. It looks whenever something was recorded; snapshots are rare, but where
    storage is short."""
    while True:
        short = storage.is_short()
        await books.compact(curator_state.state, pressed=short)
        if short:
            await asyncio.sleep(_COMPACTION_IDLE_S)
        else:
            await books.changed(timeout_s=_COMPACTION_IDLE_S)


Labels = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By trainer and stream, the labels of the groups that it takes."""


def taken_labels(data: Data) -> Labels:
    """Of streams that are not taken whole."""
    taken = {mix.policy: {one.policy: one.labels for one in mix.streams if one.labels} for mix in data.mix}
    return {policy: streams for policy, streams in taken.items() if streams}


def settled(
    ledger: Ledger, remains: Remains, *, spec: RLJobSpec, total_prompts: int | None, clock: Callable[[], float]
) -> Iterator[Record]:
    """What a recovery has to say before the job goes on."""
    yield from given_up(ledger, remains, now=clock())
    yield from continued(ledger, spec=spec, total_prompts=total_prompts)


def begun(selection: Selection, labels: Labels, ledger: Ledger) -> StreamsRouted:
    """Which streams each trainer takes, and what of them, by the manifest. Each process begins with this record, also
    where nothing has changed: whatever one before it still writes is refused from there on.
    """
    routes = {policy: tuple(selection.streams(policy)) for policy in ledger.trainers}
    return StreamsRouted(routes=routes, labels={name: dict(streams) for name, streams in labels.items()})


def changed_settings(spec: RLJobSpec, ledger: Ledger, *, clock: Callable[[], float]) -> SettingsTaken | None:
    """What the manifest says of learning, where the books know otherwise."""
    settings = spec.live_settings
    taken = SettingsTaken(
        max_staleness=settings.max_staleness,
        batch_sizes={policy.name: policy.batch_size for policy in settings.policies},
        learning_rates={policy.name: policy.learning_rate for policy in settings.policies},
        at=clock(),
    )
    return None if taken.says_as(ledger.settings) else taken


class PolicyWithoutRole(ValueError):
    """No role of the workflow speaks for a policy: it would wait for samples for ever."""


def groups_per_task(job: RLJob) -> dict[str, int]:
    """By policy that learns, how many groups each task gives: one for each role it speaks in. One that learns from
    others' trajectories alone, as a critic does, needs none.
    """
    policies = [policy.name for policy in job.spec.learning]
    of_others = {mix.policy for mix in job.spec.data.mix if all(stream.policy != mix.policy for stream in mix.streams)}
    roles = [role.policy for role in job.spec.workflow.roles] or policies
    for policy in policies:
        if policy not in roles and policy not in of_others:
            raise PolicyWithoutRole(f"workflow.roles: no role has the policy {policy!r}; add one or remove the policy")
    return {policy: roles.count(policy) for policy in policies}
