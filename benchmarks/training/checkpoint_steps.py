"""What a checkpoint costs the step that it is taken at: the copy that training waits for, and the step that runs beside
the upload, against the same step with no checkpoint under way.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.report import interleaved, note, paired_share
from benchmarks.training.cores import keep_apart, let_mingle
from benchmarks.training.step_comparison import step_totals
from benchmarks.training.step_data import MICRO_BATCH_ROWS, Lengths, grpo_policy, make_model, make_rows
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.trainer.background import Background
from trimtab.trainer.batch import Row
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.saver import CheckpointSaver
from trimtab.trainer.checkpoints.seal import CheckpointSeal
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner

ALONE, CHECKPOINTED = "alone", "checkpointed"
_SEED = 2


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    seconds: dict[str, float]
    copy_s: float
    """Of the step with a checkpoint: what the loop waits for."""
    checkpointed_over_alone: float
    """On a machine with two cores that is mostly the store, which takes several times as long as the client."""
    processor_ratio: float
    """The same of what the step itself does, whoever else computes meanwhile: its processor time, and its copy."""

    def figures(self) -> dict[str, object]:
        return {
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "copy_s": round(self.copy_s, 4),
            "checkpointed_over_alone": round(self.checkpointed_over_alone, 4),
            "processor_ratio": round(self.processor_ratio, 4),
        }


def measure_checkpointed_steps(
    objects: ObjectStoreSettings, *, rows: int, rounds: int, core_of_its_own: bool
) -> StepFigures:
    """With a core of its own, computing has one that neither the upload nor the store runs on."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as name, Background() as background:
        folder = Path(name)
        make_model(folder, seed=0)
        trainer = _Trainer(folder, objects, background, make_rows(folder, count=rows, lengths=Lengths(), seed=_SEED))
        try:
            trainer.step()
            trainer.checkpointed_step()  # memory is taken and connections are made
            if core_of_its_own:
                keep_apart()
            results = interleaved({ALONE: trainer.step, CHECKPOINTED: trainer.checkpointed_step}, rounds=rounds)
        finally:
            if core_of_its_own:
                let_mingle()
            background.run(trainer.store.close())
            torch.set_num_threads(before)
    note(f"steps: {results} s")
    return StepFigures(
        seconds={kind: statistics.median(values) for kind, values in results.items()},
        copy_s=statistics.median(trainer.copies[1:]),
        checkpointed_over_alone=paired_share(results[CHECKPOINTED], results[ALONE]),
        processor_ratio=paired_share(trainer.processor[CHECKPOINTED][1:], trainer.processor[ALONE][1:]),
    )


class _Trainer:
    def __init__(self, model: Path, objects: ObjectStoreSettings, background: Background, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._learner = Learner(
            grpo_policy(micro_batch_tokens=MICRO_BATCH_ROWS * max(len(row.token_ids) for row in rows)),
            model_path=model,
        )
        self.store = ObjectStore(objects.model_copy(update={"prefix": f"steps-{uuid.uuid4().hex[:8]}"}))
        signer = Signer.generate()
        seal = CheckpointSeal(job="b/j", policy="p", signer=signer, verifier=Verifier([signer.public_text]))
        checkpoints = CheckpointStore(ObjectStorage(self.store, "checkpoints/p"), seal, keep=1)
        background.run(checkpoints.claim(1))
        self._saver = CheckpointSaver(self._learner, checkpoints, background, rank=0, acknowledge=_not_told)
        self.copies: list[float] = []
        self.processor: dict[str, list[float]] = {ALONE: [], CHECKPOINTED: []}

    def step(self) -> float:
        seconds, processor = self._step()
        self.processor[ALONE].append(processor)
        return seconds

    def _step(self) -> tuple[float, float]:
        began, busy = time.perf_counter(), time.thread_time()
        self._learner.accumulate(self._rows)
        self._learner.update(step_totals(self._rows))
        return time.perf_counter() - began, time.thread_time() - busy

    def checkpointed_step(self) -> float:
        """The upload may take longer than the step: what is left of it is waited for afterwards."""
        began, busy = time.perf_counter(), time.thread_time()
        self._saver.begin(lease_id="l")
        self.copies.append(time.perf_counter() - began)
        copying = time.thread_time() - busy
        seconds, processor = self._step()
        self.processor[CHECKPOINTED].append(copying + processor)
        self._saver.flush()
        return self.copies[-1] + seconds


async def _not_told(step: int, *, lease_id: str, weight_version: int) -> None:
    """There is no dataflow here."""
