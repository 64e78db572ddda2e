"""Steps of the real training loop, with rows at hand: what it costs besides computing, and what publication costs.

Three ways to make the same steps take turns: the learner alone, the loop that publishes nothing, and the loop that
publishes every version to a real store. A step's time is the one that the loop itself reports to the dataflow.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.report import interleaved, note, paired_share
from benchmarks.training.cores import keep_apart, let_mingle
from benchmarks.training.lease_desk import LeaseDesk
from benchmarks.training.step_comparison import step_totals
from benchmarks.training.step_data import MICRO_BATCH_ROWS, POLICY, grpo_policy
from trimtab.api.policy import Policy
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.fabric.wire.lease import StepTotals
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.background import Background
from trimtab.trainer.batch import Row, micro_batches, pack
from trimtab.trainer.batch_stream import BatchStream, RankIdentity
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.saver import CheckpointSaver
from trimtab.trainer.checkpoints.seal import CheckpointSeal
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner
from trimtab.trainer.loop import TrainingLoop
from trimtab.trainer.metrics import StepOutcome, TrainerMetrics
from trimtab.weights.baseline import WeightChanges, WeightSource
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.upkeep import UpkeepRules

BARE, SILENT, PUBLISHING = "learner", "loop", "loop_publishing"
ROUNDS = 3
_TURN_STEPS = 5
"""Of a turn in the loop the first step waits for its rows, and the last one's time is never reported."""
_DEADLINE_S = 60.0
_PACKINGS = 20
_RULES = UpkeepRules(
    anchor_every=100,
    fold_every=16,
    collection=CollectionRules(keep_versions=200, lease_ttl_s=900.0, grace_s=600.0),
)


@dataclass
class Clocked:
    """Seconds by step."""

    computing: dict[int, float] = field(default_factory=dict)
    processor: dict[int, float] = field(default_factory=dict)
    """What the computing thread took of a processor: neighbours that take it away for a while do not count."""
    blocked: dict[int, float] = field(default_factory=dict)

    @contextmanager
    def computes(self, step: int) -> Iterator[None]:
        began, taken = time.perf_counter(), time.thread_time()
        yield
        self.computing[step] = self.computing.get(step, 0.0) + time.perf_counter() - began
        self.processor[step] = self.processor.get(step, 0.0) + time.thread_time() - taken

    @contextmanager
    def blocks(self, step: int) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.blocked[step] = self.blocked.get(step, 0.0) + time.perf_counter() - began


class ClockedLearner(Learner):
    """Notes how long it computes."""

    clocked: Clocked

    def accumulate(self, rows: Sequence[Row]) -> None:
        with self.clocked.computes(self.step):
            super().accumulate(rows)

    def update(self, totals: StepTotals) -> StepOutcome:
        with self.clocked.computes(self.step):
            return super().update(totals)

    def weights(self) -> WeightSource | WeightChanges:
        """Whatever waits for it afterwards counts too: the next update, until the weights have been read."""
        published = self.step - 1
        with self.clocked.blocks(published):
            weights = super().weights()
        unclocked = self.before_change

        def before_change() -> None:
            self.before_change = unclocked
            with self.clocked.blocks(published):
                unclocked()

        self.before_change = before_change
        return weights


@dataclass(frozen=True, kw_only=True)
class LoopFigures:
    """Medians over steps, in seconds, and medians of ratios over rounds."""

    seconds: dict[str, float]
    publishing_over_silent: float
    blocked_s: float
    """A step that publishes stands still for this long, of the time that publication adds."""
    blocked_share: float
    processor_s: dict[str, float]
    """Of the computing thread, of a step: with one thread, what its wall time is when the core is free."""
    processor_ratio: float
    """Computing and standing still in a step that publishes, over computing in one that does not."""
    published_share: float
    """Of the steps, those whose version went out: one that is due while another is on its way is passed over."""
    waiting_s: float
    packing_s: float
    overhead_share: float
    loop_over_learner: float

    def figures(self) -> dict[str, object]:
        return {name: _rounded(value) for name, value in vars(self).items()}


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return round(value, 5) if isinstance(value, float) else value


def measure_loop(
    rows: Sequence[Row],
    *,
    model_path: Path,
    nats: NatsSettings,
    objects: ObjectStoreSettings,
    folder: Path,
    threads: int,
    core_of_its_own: bool,
) -> LoopFigures:
    """With a core of its own, computing has one that nothing else of ours runs on: as when cores are plenty."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    with Background() as background:
        stack = AsyncExitStack()
        trainer = background.run(_connected(rows, stack, model_path, nats, objects, folder, background))
        try:
            trainer.turn(publishing=True)  # the first version goes out whole, and threads come to life
            if core_of_its_own:
                keep_apart()
            return trainer.measured()
        finally:
            if core_of_its_own:
                let_mingle()
            background.run(stack.aclose())
            torch.set_num_threads(before)


class LoopTrainer:
    """One learner that the three ways share."""

    def __init__(
        self,
        learner: ClockedLearner,
        desk: LeaseDesk,
        stream: BatchStream,
        checkpoints: CheckpointStore,
        publisher: WeightPublisher,
        background: Background,
        rows: Sequence[Row],
    ) -> None:
        self._learner = learner
        self._desk = desk
        self._stream = stream
        self._checkpoints = checkpoints
        self._publisher = publisher
        self._background = background
        self._rows = rows
        self._steps: dict[str, list[int]] = {SILENT: [], PUBLISHING: []}

    def measured(self) -> LoopFigures:
        self._steps = {SILENT: [], PUBLISHING: []}  # of the turns before only threads and buffers are kept
        medians = interleaved(
            {
                BARE: self.bare_turn,
                SILENT: lambda: self.turn(publishing=False),
                PUBLISHING: lambda: self.turn(publishing=True),
            },
            rounds=ROUNDS,
        )
        note(f"loop: {medians} s a step")
        clocked, timings = self._learner.clocked, self._desk.timings
        packing = self._packing()
        silent, publishing = self._steps[SILENT], self._steps[PUBLISHING]
        besides = [
            (timings[step].step_seconds - clocked.computing[step] + packing) / timings[step].step_seconds
            for step in silent
        ]
        blocked = [clocked.blocked[step] for step in publishing if step in clocked.blocked]
        blocked_s = statistics.median(blocked)
        processor = {
            name: statistics.median(clocked.processor[step] for step in self._steps[name])
            for name in (SILENT, PUBLISHING)
        }
        return LoopFigures(
            seconds={name: statistics.median(values) for name, values in medians.items()},
            publishing_over_silent=paired_share(medians[PUBLISHING], medians[SILENT]),
            blocked_s=blocked_s,
            blocked_share=blocked_s / statistics.median(medians[SILENT]),
            processor_s=processor,
            processor_ratio=(processor[PUBLISHING] + blocked_s) / processor[SILENT],
            published_share=len(blocked) / len(publishing),
            waiting_s=statistics.median(timings[step].wait_seconds for step in silent),
            packing_s=packing,
            overhead_share=statistics.median(besides),
            loop_over_learner=paired_share(medians[SILENT], medians[BARE]),
        )

    def bare_turn(self) -> float:
        """Without the loop: median seconds of a step."""
        totals = step_totals(self._rows)
        steps = range(self._learner.step, self._learner.step + _TURN_STEPS - 2)
        for _ in steps:
            self._learner.accumulate(self._rows)
            self._learner.update(totals)
        return statistics.median(self._learner.clocked.computing[step] for step in steps)

    def turn(self, *, publishing: bool) -> float:
        """Some steps of the real loop: median seconds of one."""
        first = self._learner.step
        self._desk.until = first + _TURN_STEPS
        TrainingLoop(
            self._learner,
            self._stream,
            CheckpointSaver(
                self._learner, self._checkpoints, self._background, rank=0, acknowledge=self._stream.acknowledge
            ),
            self._publisher if publishing else None,
            self._background,
            TrainerMetrics(Metrics()),
            policy=_policy(self._rows),
            max_staleness=8,
            stopping=lambda: False,
        ).run()
        steps = [step for step in range(first + 1, self._desk.until) if step in self._desk.timings]
        self._steps[PUBLISHING if publishing else SILENT] += steps
        return statistics.median(self._desk.timings[step].step_seconds for step in steps)

    def _packing(self) -> float:
        """What the learner does before it computes, timed by itself."""
        tokens = _policy(self._rows).trainer.micro_batch_tokens
        taken = []
        for _ in range(_PACKINGS):
            began = time.perf_counter()
            for part in micro_batches(self._rows, max_tokens=tokens):
                pack(part, device=torch.device("cpu"))
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)


async def _connected(
    rows: Sequence[Row],
    stack: AsyncExitStack,
    model_path: Path,
    nats: NatsSettings,
    objects: ObjectStoreSettings,
    folder: Path,
    background: Background,
) -> LoopTrainer:
    """Everything as trimtab.trainer wires it, on a bus and a store prefix of its own."""
    learner = ClockedLearner(_policy(rows), model_path=model_path)
    learner.clocked = Clocked()
    topology = JobTopology("benchmark", f"loop-{uuid.uuid4().hex[:8]}")
    bus = await stack.enter_async_context(await Bus.connect(nats, name="trainer"))
    prefixed = objects.model_copy(update={"prefix": topology.job})
    store = await stack.enter_async_context(ObjectStore(prefixed))
    desk = LeaseDesk(bus, topology, rows)
    await stack.enter_async_context(await desk.open())
    signer = Signer.generate()
    publisher = await WeightPublisher.open(
        store,
        KeyValue(bus, topology.weights),
        job=topology.job,
        policy=POLICY,
        signer=signer,
        rules=_RULES,
        folder=folder / topology.job,
        clock=time.time,
        deadline_s=_DEADLINE_S,
    )
    stack.push_async_callback(publisher.close)
    storage = ObjectStorage(store, f"checkpoints/{POLICY}")
    seal = CheckpointSeal(job=topology.job, policy=POLICY, signer=signer, verifier=Verifier([signer.public_text]))
    checkpoints = CheckpointStore(storage, seal, keep=1)
    await checkpoints.claim(publisher.epoch)
    stream = BatchStream(
        bus,
        topology.batch_subject(POLICY),
        RankIdentity(job=topology.job, policy=POLICY, rank=0, world_size=1, attempt=0),
        advantages=AdvantageRule.of(_policy(rows)),
        clock=time.time,
    )
    return LoopTrainer(learner, desk, stream, checkpoints, publisher, background, rows)


def _policy(rows: Sequence[Row]) -> Policy:
    return grpo_policy(micro_batch_tokens=MICRO_BATCH_ROWS * max(len(row.token_ids) for row in rows))
