"""Model and optimiser of one rank: a step's rows in, an update out, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from trimtab.api.policy import Policy
from trimtab.api.support import unsupported_in_policy
from trimtab.fabric.wire.lease import StepTotals
from trimtab.trainer.batch import MicroBatch, Row, micro_batches
from trimtab.trainer.losses.grpo import grpo_loss
from trimtab.trainer.model_weights import ModelWeights
from trimtab.trainer.schedule import rate_factor

_DEFAULT_CLIP = 0.2


class UnsupportedAlgorithm(ValueError):
    """The manifest asks for something this trainer does not do; the message names the field."""


class TrainingDiverged(RuntimeError):
    """Too many steps in a row had a loss or gradient that was not finite."""


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What an update looked like."""

    loss: float
    grad_norm: float
    skipped: bool


class Learner:
    """Replicated weights, summed gradients. `step` counts the updates made: it is the version of the weights."""

    def __init__(self, policy: Policy, *, model_path: Path) -> None:
        _check_supported(policy)
        self._policy = policy
        self.model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, local_files_only=True)
        self.model.train()
        optimizer = policy.algorithm.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
        )
        self.step = 0
        self._loss_sum = 0.0
        self._skipped_in_a_row = 0

    def accumulate(self, rows: Sequence[Row]) -> None:
        """Gradients of rows of the step that is under way: of all, or of a portion while others do not exist yet."""
        for micro in micro_batches(rows, max_tokens=self._policy.trainer.micro_batch_tokens):
            loss = self._loss(micro)
            loss.backward()  # type: ignore[no-untyped-call]
            self._loss_sum += loss.item()

    def update(self, totals: StepTotals) -> StepOutcome:
        """One update from all rows of the step. All ranks call it together."""
        self._scale(1.0 / totals.samples)
        loss = self._sum_over_ranks(self._loss_sum / totals.samples)
        self._loss_sum = 0.0
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self._policy.algorithm.optimizer.max_grad_norm
        ).item()
        skipped = not (math.isfinite(loss) and math.isfinite(norm))
        self._count_skipped(skipped=skipped)
        if not skipped:
            factor = rate_factor(self._policy.algorithm.schedule, self.step)
            for group in self.optimizer.param_groups:
                group["lr"] = self._policy.algorithm.optimizer.learning_rate * factor
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return StepOutcome(loss=loss, grad_norm=norm, skipped=skipped)

    def weights(self) -> ModelWeights:
        """The weights as pools load them, to be read before the next step."""
        return ModelWeights(self.model, dtype=getattr(torch, self._policy.trainer.dtype))

    def _loss(self, micro: MicroBatch) -> torch.Tensor:
        logits = self.model(input_ids=micro.token_ids, attention_mask=micro.attention_mask, use_cache=False).logits[
            :, :-1
        ]
        logprobs = torch.log_softmax(logits.float() / self._policy.sampling.temperature, dim=-1)
        chosen = logprobs.gather(-1, micro.token_ids[:, 1:, None])[..., 0]
        clip = self._policy.algorithm.clip
        return grpo_loss(
            chosen,
            sampled_logprobs=micro.logprobs[:, 1:],
            advantages=micro.advantages,
            mask=micro.mask[:, 1:],
            clip_low=clip.low if clip and clip.low is not None else _DEFAULT_CLIP,
            clip_high=clip.high if clip and clip.high is not None else _DEFAULT_CLIP,
        )

    def _scale(self, factor: float) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _sum_over_ranks(self, loss: float) -> float:
        """Sum gradients and loss over the ranks: each computed its share of the step's mean."""
        if not dist.is_initialized():
            return loss
        gradients = []
        for parameter in self.model.parameters():
            if parameter.grad is None:  # a rank without rows still takes part
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients] + [torch.tensor([loss])])
        dist.all_reduce(flat)
        offset = 0
        for gradient in gradients:
            gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
            offset += gradient.numel()
        return float(flat[-1])

    def _count_skipped(self, *, skipped: bool) -> None:
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if self._skipped_in_a_row > self._policy.trainer.max_skipped_steps:
            raise TrainingDiverged(
                f"step {self.step}: loss or gradient not finite for {self._skipped_in_a_row} steps in a row;"
                " lower policies[].algorithm.optimizer.learningRate or maxGradNorm"
            )


def _check_supported(policy: Policy) -> None:
    fields = unsupported_in_policy(policy)
    if fields:
        raise UnsupportedAlgorithm(f"policies[{policy.name}]: this version does not do {', '.join(fields)}")
