"""A rank of the real trainer, forked from a template, that notes the rows it trains on and dies as planned."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

import trimtab.trainer.__main__ as trainer
from tests.support.weights.small_blocks import cut_small_blocks
from tests.support.weights.transfer_worker import _parse_once
from trimtab.fabric.pod import read_job
from trimtab.fabric.settings import environment_for
from trimtab.trainer.batch import Row
from trimtab.trainer.batch_stream import BatchStream
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner
from trimtab.trainer.rank_place import TrainerPodSettings
from trimtab.weights.codec.blocks import encode_change, encode_whole
from trimtab.weights.codec.change import find_change
from trimtab.weights.layout import StateLayout
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.version_writer import VersionWriter

RANKS = 2
BLOCK_BYTES = 1 << 10
_HANGS_S = 30.0
"""After which a rank says in its log where it is."""
MOMENTS: dict[str, tuple[type, str]] = {
    "claiming": (CheckpointStore, "claim"),
    "resuming": (CheckpointStore, "read"),
    "writing its file": (CheckpointStore, "put"),
    "committing": (CheckpointStore, "commit"),
    "moving the pointer": (ObjectStorage, "swap_pointer"),
    "deleting old checkpoints": (ObjectStorage, "delete"),
    "acknowledging": (BatchStream, "acknowledge"),
    "publishing": (WeightPublisher, "publish"),
    "storing its blocks": (VersionWriter, "store_blocks"),
    "signing": (VersionWriter, "sign"),
}
"""What a rank can be in the midst of, and where in the code that is."""
RANK_0_ALONE = set(MOMENTS) - {"resuming", "writing its file", "publishing", "storing its blocks"}
TRAINING = "training"
"""Each time that a rank computes on rows."""


class Resumed(msgspec.Struct, frozen=True, tag=True):
    """A rank has asked for its first rows."""

    attempt: int
    rank: int
    step: int


class TrainedOn(msgspec.Struct, frozen=True, tag=True):
    """Rows went into a step's gradients."""

    attempt: int
    rank: int
    step: int
    rows: tuple[int, ...]


class Dying(msgspec.Struct, frozen=True, tag=True):
    """The rank dies now. `amid` is what its other threads are in the midst of."""

    attempt: int
    rank: int
    amid: tuple[str, ...]


Note = Resumed | TrainedOn | Dying


@dataclass(frozen=True, kw_only=True)
class Death:
    """So long after the rank has come to a moment for the n-th time, or after its start where there is no moment. One
    that does not come there dies `at_latest_s` after its first rows.
    """

    moment: str | None = None
    time: int = 1
    delay_s: float
    at_latest_s: float


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """One rank of one attempt, all of which are in one pod."""

    settings: TrainerPodSettings
    rank: int
    port: int
    folder: Path
    death: Death | None = None

    @property
    def name(self) -> str:
        return f"{self.settings.attempt:03d}-{self.rank}"


def prepare(job_file: Path) -> None:
    """What every fork would do again: compile the rules of manifests, the patterns of model files and the kernels of
    the weight codec. No backward pass and no process group: what they start does not survive a fork.
    """
    # Progress bars of all forks would share a lock, and a rank that is killed while it has it stops all that follow.
    disable_progress_bar()
    cut_small_blocks(BLOCK_BYTES)
    _parse_once()
    job = read_job(job_file)
    AutoModelForCausalLM.from_pretrained(job_file.parent / job.spec.policies[0].weights.uri, dtype=torch.float32)
    block = StateLayout.of({"x": ("F32", (1 << 12,))}).blocks[0]
    before = np.zeros(block.size, dtype=np.uint8)
    for every in (1, 50):
        after = before.copy()
        after.view(np.uint32)[::every] += 1
        change = find_change(before, after, width=block.element.width)
        assert change is not None
        encode_change(before, change, block.element)
    encode_whole(before, block.element)
    assert threading.active_count() == 1


def notes(folder: Path) -> list[Note]:
    lines = (line for path in sorted(folder.glob("*.notes")) for line in path.read_bytes().splitlines())
    return [msgspec.json.decode(line, type=Note) for line in lines]


def run_rank(plan: RankPlan) -> None:
    """Until the policy is finished, or until death."""
    log = os.open(plan.folder / f"{plan.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    faulthandler.dump_traceback_later(_HANGS_S, file=sys.stderr)
    os.environ.update(
        environment_for(plan.settings),
        RANK=str(plan.rank),
        LOCAL_RANK=str(plan.rank),
        WORLD_SIZE=str(RANKS),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(plan.port),
    )
    notebook = _Notebook(plan)
    reaper = _Reaper(plan, notebook)
    reaper.watch()
    notebook.watch_training(begins=lambda: reaper.reached(TRAINING))
    torch.manual_seed(plan.rank)
    trainer.main()


class _Notebook:
    """A line is one write, so a killed process leaves whole lines."""

    def __init__(self, plan: RankPlan) -> None:
        self._descriptor = os.open(plan.folder / f"{plan.name}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._attempt = plan.settings.attempt
        self._rank = plan.rank

    def write(self, note: Note) -> None:
        os.write(self._descriptor, msgspec.json.encode(note) + b"\n")

    def watch_training(self, *, begins: Callable[[], None]) -> None:
        accumulate = Learner.accumulate
        began: list[int] = []

        def noted(learner: Learner, rows: tuple[Row, ...]) -> None:
            if not began:
                began.append(learner.step)
                self.write(Resumed(self._attempt, self._rank, learner.step))
            begins()
            accumulate(learner, rows)
            self.write(TrainedOn(self._attempt, self._rank, learner.step, tuple(row.key for row in rows)))

        Learner.accumulate = noted  # type: ignore[method-assign, assignment]


class _Reaper:
    """Kills the process from within, at a moment that nobody outside could hit: SIGKILL all the same."""

    def __init__(self, plan: RankPlan, notebook: _Notebook) -> None:
        self._plan = plan
        self._notebook = notebook
        self._amid: list[str] = []
        self._times: Counter[str] = Counter()

    def watch(self) -> None:
        for moment, (owner, name) in MOMENTS.items():
            setattr(owner, name, self._watched(getattr(owner, name), moment))
        death = self._plan.death
        if death is not None and death.moment is None:
            self._die_after(death.delay_s)

    def reached(self, moment: str) -> None:
        death = self._plan.death
        self._times[moment] += 1
        if death is None:
            return
        if (death.moment, death.time) == (moment, self._times[moment]):
            self._die_after(death.delay_s)
        elif (moment, self._times[moment]) == (TRAINING, 1):
            self._die_after(death.at_latest_s)

    def _watched(self, call: Callable[..., Awaitable[Any]], moment: str) -> Callable[..., Awaitable[Any]]:
        async def watched(*arguments: Any, **keywords: Any) -> Any:
            self._amid.append(moment)
            self.reached(moment)
            try:
                return await call(*arguments, **keywords)
            finally:
                self._amid.remove(moment)

        return watched

    def _die_after(self, delay_s: float) -> None:
        def die() -> None:
            time.sleep(delay_s)
            self._notebook.write(Dying(self._plan.settings.attempt, self._plan.rank, tuple(self._amid)))
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=die, daemon=True).start()
