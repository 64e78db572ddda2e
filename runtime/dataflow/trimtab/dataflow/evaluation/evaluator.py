"""Runs evaluations beside training: rounds of held-out prompts through the same workers, and their scores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import structlog

from trimtab.api.evaluation import Evaluation
from trimtab.api.job import RLJob, RLJobSpec
from trimtab.dataflow.evaluation.benchmarks import HeldOut
from trimtab.dataflow.issuer import QUEUE
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.evaluation_books import evaluation_task_id
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import EvaluationEnded, EvaluationStarted
from trimtab.dataflow.ledger.trainer_books import is_out_of_reach
from trimtab.dataflow.patience import patiently
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.weights import WeightPointer

_log = structlog.get_logger(__name__)
_IDLE_S = 1.0
_PUT_DEADLINE_S = 5.0
# Prompts on the queue at a time: enough to keep pools busy, few enough that training goes on in between.
_MAX_OUTSTANDING = 128


class PublishedVersions:
    """Follows the pointers that trainers write. `on_change` is called with every one."""

    def __init__(self, *, on_change: Callable[[], None]) -> None:
        self.versions: dict[str, int] = {}
        self._on_change = on_change

    async def follow(self, weights: KeyValue) -> None:
        async with KvWatch(weights) as watch:
            async for change in watch:
                if isinstance(change, Entry):
                    self._note(change)

    def _note(self, entry: Entry) -> None:
        try:
            pointer = decode(entry.value, WeightPointer)
        except WireError as error:
            _log.warning("weights_unreadable", key=entry.key, reason=str(error))
            return
        self.versions[pointer.policy] = pointer.version
        self._on_change()


class EvaluationGauges:
    """The latest results, one series per policy and benchmark."""

    def __init__(self, metrics: Metrics) -> None:
        labels = ("policy", "benchmark")
        self._score = metrics.gauge("evaluation_score", "Mean reward on held-out prompts", labels)
        self._version = metrics.gauge("evaluation_version", "Version that was evaluated", labels)

    def show(self, result: EvaluationResult) -> None:
        self._version.labels(result.policy, result.benchmark).set(result.version)
        if result.score is not None:
            self._score.labels(result.policy, result.benchmark).set(result.score)


class Evaluator:
    """One round at a time. A round that a crash interrupts goes on: prompts without an answer are sent again, and
    answers that come twice count once.
    """

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        job: RLJob,
        settings: Evaluation,
        benchmarks: Mapping[str, HeldOut],
        books: Bookkeeper,
        published: PublishedVersions,
        results: KeyValue,
        gauges: EvaluationGauges,
        *,
        held: Callable[[], bool] = lambda: False,
        is_last: Callable[[Ledger], bool] = lambda _: False,
        clock: Callable[[], float],
    ) -> None:
        """`held` says whether no round is to begin, because storage is nearly full; `is_last` whether all policies have
        had enough, so that what they have learnt by now is the job's outcome."""
        self._held = held
        self._is_last = is_last
        self._bus = bus
        self._topology = topology
        self._job = job
        self._settings = settings
        self._benchmarks = benchmarks
        self._books = books
        self._published = published
        self._results = results
        self._gauges = gauges
        self._clock = clock
        self._unsent: deque[tuple[str, int]] = deque()
        """Prompts of the running round, by benchmark and number, that have not gone out."""
        self._sent: set[tuple[str, int]] = set()
        """Those that the queue has acknowledged, and that have no answer yet."""

    def sent(self) -> set[str]:
        """Ids of tasks that the queue has acknowledged, and that the books wait for."""
        books = self._books.ledger.evaluation
        running = books.running
        if running is None:
            return set()
        return {evaluation_task_id(running.number, *key) for key in self._sent if not books.is_done(*key)}

    async def run(self) -> None:
        await patiently(self._evaluate, self._bus, self._topology.tasks)

    async def _evaluate(self) -> None:
        async with WindowedPublisher(self._bus, max_messages=256, max_bytes=16 << 20, deadline_s=60.0) as publisher:
            books = self._books.ledger.evaluation
            if books.latest is not None:
                await self._announce(books.latest)
            if books.running is not None:
                self._begin(books.running)
            while True:
                started = await self._books.record(self._due)
                if isinstance(started, EvaluationStarted):
                    _log.info("evaluation_started", number=started.number, versions=started.versions)
                    self._begin(started)
                if (running := self._books.ledger.evaluation.running) is not None:
                    await self._send(publisher, running)
                    ended = await self._books.record(self._over)
                    if isinstance(ended, EvaluationEnded):
                        await self._announce(ended)
                await self._books.changed(timeout_s=_IDLE_S)

    def _due(self, ledger: Ledger) -> EvaluationStarted | None:
        if self._held():
            return None
        # Every policy has a part in an episode: there is nothing to evaluate before all have weights to be served.
        versions = {
            name: self._published.versions[name] for name in ledger.trainers if name in self._published.versions
        }
        books = ledger.evaluation
        if books.running is not None or len(versions) < len(ledger.trainers):
            return None
        lead, is_last = max(versions.values()), self._is_last(ledger)
        if is_last and lead < publishable_lead(ledger, self._job.spec):
            return None  # its version is still on its way
        if not is_due(lead, last_lead=books.last_lead, settings=self._settings, is_last=is_last):
            return None
        return EvaluationStarted(
            number=books.ended,
            versions=versions,
            benchmarks=tuple(benchmark.plan for benchmark in self._benchmarks.values()),
            at=self._clock(),
        )

    def _begin(self, running: EvaluationStarted) -> None:
        books = self._books.ledger.evaluation
        keys = ((plan.name, number) for plan in running.benchmarks for number in range(plan.prompts))
        self._unsent = deque(key for key in keys if not books.is_done(*key))
        self._sent = set()

    async def _send(self, publisher: WindowedPublisher, running: EvaluationStarted) -> None:
        if self._changed(running):
            return
        self._note_answers(self._books.ledger)
        room = max(0, _MAX_OUTSTANDING - len(self._sent))
        sending = [self._unsent.popleft() for _ in range(min(room, len(self._unsent)))]
        for key in sending:
            task = self._task(running, *key)
            await publisher.publish(self._topology.task_subject(QUEUE), encode(task), message_id=task.task_id)
        await publisher.flush()
        self._sent.update(sending)

    def _note_answers(self, ledger: Ledger) -> None:
        self._sent = {key for key in self._sent if not ledger.evaluation.is_done(*key)}

    def _task(self, running: EvaluationStarted, benchmark: str, number: int) -> Task:
        held_out = self._benchmarks[benchmark]
        prompt = held_out.prompt(number)
        return Task(
            task_id=evaluation_task_id(running.number, benchmark, number),
            job=self._job.metadata.name,
            prompt_id=prompt.prompt_id,
            prompt=dict(prompt.content),
            group_size=held_out.samples,
            # The same in every round, so that two versions meet the same chance.
            seed=(self._job.spec.data.seed << 32) + number,
            sampling=dict(held_out.sampling),
            target_versions=running.versions,
            minimum_versions=running.versions,
            purpose=Purpose.EVALUATION,
            benchmark=benchmark,
            created_at=self._clock(),
        )

    def _changed(self, running: EvaluationStarted) -> bool:
        """Whether the manifest has other benchmarks than the round began with: it cannot go on."""
        return running.benchmarks != tuple(benchmark.plan for benchmark in self._benchmarks.values())

    def _over(self, ledger: Ledger) -> EvaluationEnded | None:
        books = ledger.evaluation
        running = books.running
        if running is None:
            return None
        why = (
            "the benchmarks of the job have changed"
            if self._changed(running)
            else "its weights are lost"
            if is_out_of_reach(running.versions, ledger.trainers)
            else None
        )
        if why is not None:
            _log.warning("evaluation_given_up", number=running.number, why=why)
            return EvaluationEnded(number=running.number, at=self._clock())
        self._note_answers(ledger)
        if self._sent or self._unsent:
            return None
        return EvaluationEnded(number=running.number, scores=books.score(), at=self._clock())

    async def _announce(self, ended: EvaluationEnded) -> None:
        """Also after a restart: the last one may have died between the record and this."""
        bests = self._books.ledger.evaluation.best
        for score in ended.scores:
            best = bests.get((score.policy, score.benchmark))
            result = EvaluationResult(
                job=self._job.metadata.name,
                policy=score.policy,
                benchmark=score.benchmark,
                version=score.version,
                newest_version=score.newest_version,
                score=score.score,
                episodes=score.episodes,
                failed=score.failed,
                best_version=None if best is None else best.version,
                best_score=None if best is None else best.score,
                at=ended.at,
            )
            self._gauges.show(result)
            _log.info("evaluated", policy=score.policy, benchmark=score.benchmark, score=score.score)
            key = JobTopology.evaluation_key(score.policy, score.benchmark, version=score.version)
            try:
                await self._results.put(key, encode(result), deadline_s=_PUT_DEADLINE_S)
            except BusError as error:
                _log.warning("result_not_written", key=key, error=str(error))


def is_due(lead: int, *, last_lead: int | None, settings: Evaluation, is_last: bool = False) -> bool:
    """`lead` is the newest published version of any policy, `last_lead` what it was when the latest round began. With
    several policies the one furthest on sets the pace. Rounds that fall behind are passed over, not made up for; at the
    end of the job there is a last one, whatever their distance.
    """
    if is_last:
        return last_lead is None or lead > last_lead
    if last_lead is None:
        return settings.at_start or lead >= settings.every_steps
    return lead // settings.every_steps > last_lead // settings.every_steps


def is_owed(ledger: Ledger, spec: RLJobSpec, *, is_last: bool = False) -> bool:
    """Whether a round is under way or still to come for what the trainers have done: a job is not over before it."""
    if spec.evaluation is None:
        return False
    if ledger.evaluation.running is not None:
        return True
    lead = publishable_lead(ledger, spec)
    return is_due(lead, last_lead=ledger.evaluation.last_lead, settings=spec.evaluation, is_last=is_last)


def publishable_lead(ledger: Ledger, spec: RLJobSpec) -> int:
    """The newest version, of any policy, that its trainer has published or is about to."""
    return max(
        ledger.trainers[policy.name].trained_steps // policy.trainer.publish.every_steps
        * policy.trainer.publish.every_steps
        for policy in spec.learning
    )  # fmt: skip
