"""A GRPO step as anyone would write it: rows padded to the longest of their micro-batch, whole logits, one loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from benchmarks.training.step_data import CLIP, LEARNING_RATE, MICRO_BATCH_ROWS, NEVER_CLIPPED
from trimtab.trainer.batch import Row


class PaddedStep:
    """One model and its optimiser; gradients lie in the parameters between `accumulate` and `update`."""

    def __init__(self, model_path: Path) -> None:
        self.model = LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="sdpa")
        self.model.train()
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)

    def accumulate(self, rows: Sequence[Row]) -> float:
        """Gradients of the step, and its loss."""
        total = 0.0
        for first in range(0, len(rows), MICRO_BATCH_ROWS):
            loss = self._loss(rows[first : first + MICRO_BATCH_ROWS]) / len(rows)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), NEVER_CLIPPED)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _loss(self, rows: Sequence[Row]) -> torch.Tensor:
        """The sum over rows of their mean token loss."""
        ids = _padded([row.token_ids for row in rows]).long()
        attended = _padded([np.ones(len(row.token_ids), dtype=np.int64) for row in rows])
        mask = _padded([row.mask for row in rows])[:, 1:].float()
        sampled = _padded([row.logprobs for row in rows])[:, 1:]
        advantages = _padded([row.advantages for row in rows])[:, 1:]
        logits = self.model(input_ids=ids, attention_mask=attended, use_cache=False).logits[:, :-1]
        logprobs = torch.log_softmax(logits, dim=-1).gather(-1, ids[:, 1:, None])[..., 0]
        ratio = torch.exp(logprobs - sampled)
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        return -((surrogate * mask).sum(dim=1) / mask.sum(dim=1)).sum()


def _padded(rows: Sequence[np.ndarray[tuple[int], np.dtype[np.generic]]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True)
