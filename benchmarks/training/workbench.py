"""Where a training step is timed: a model, rows of long-tailed lengths and a device, a CPU's small or a GPU's large."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.training.step_comparison import step_totals
from benchmarks.training.step_data import MICRO_BATCH_ROWS, POLICY, Lengths, make_model, make_rows
from trimtab.api.policy import Policy
from trimtab.trainer.batch import Row
from trimtab.trainer.learner import Learner

REFERENCE = "reference"
"""The stage whose column every row has."""
_SEED = 2
_ROWS = 24
_GPU_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """Rows lie in the order of their groups, `group_size` of each."""

    device: torch.device
    model_path: Path
    rows: tuple[Row, ...]
    group_size: int
    micro_batch_tokens: int

    def learner(self, algorithm: dict[str, object]) -> Learner:
        policy = Policy.model_validate(
            {
                "name": POLICY,
                "model": {"uri": "model"},
                "algorithm": {**algorithm, "optimizer": {"learningRate": 1e-6}},
                "sampling": {"maxTokens": max(len(row.token_ids) for row in self.rows)},
                "trainer": {
                    "dtype": "bfloat16",
                    "microBatchTokens": self.micro_batch_tokens,
                    "gradientCheckpointing": False,
                },
            }
        )
        return Learner(policy, model_path=self.model_path, device=self.device)

    def groups(self) -> list[tuple[Row, ...]]:
        return [self.rows[first : first + self.group_size] for first in range(0, len(self.rows), self.group_size)]

    def step(self, learner: Learner) -> float:
        """Seconds of one with all rows at hand."""
        began = time.perf_counter()
        learner.accumulate(self.rows)
        self.finish(learner)
        return time.perf_counter() - began

    def finish(self, learner: Learner) -> None:
        learner.update(step_totals(self.rows))
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def on_cpu(folder: Path) -> Workbench:
    """23 million weights."""
    make_model(folder, seed=0)
    rows = make_rows(folder, count=_ROWS, lengths=Lengths(), seed=_SEED)
    return Workbench(
        device=torch.device("cpu"),
        model_path=folder,
        rows=_with_column(rows),
        group_size=4,
        micro_batch_tokens=MICRO_BATCH_ROWS * max(len(row.token_ids) for row in rows),
    )


def on_gpu(folder: Path) -> Workbench:
    """1.7 billion weights, 131,072 tokens a step."""
    # Its kernels are imported with it, and exist only where there is a GPU.
    from benchmarks.gpu.random_model import qwen3, write_weights
    from benchmarks.training.gpu_step import PACK_TOKENS, step_rows

    write_weights(folder, qwen3(layers=28), seed=_GPU_SEED)
    rows = step_rows(np.random.default_rng(_GPU_SEED))
    return Workbench(
        device=torch.device("cuda"),
        model_path=folder,
        rows=_with_column(rows),
        group_size=4,
        micro_batch_tokens=PACK_TOKENS,
    )


def _with_column(rows: Sequence[Row]) -> tuple[Row, ...]:
    """What the reference would say is as good as what the sampler said: it takes the same time to read."""
    return tuple(replace(row, columns={REFERENCE: row.logprobs}) for row in rows)
