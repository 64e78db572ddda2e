"""Model and optimiser of one rank: a step's rows in, an update out, the same on every rank. What is decided over a
whole step depends neither on micro-batches nor on which rank has a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from trimtab.api.algorithm import Schedule
from trimtab.api.policy import Policy
from trimtab.api.support import unsupported_in_policy
from trimtab.fabric.wire.lease import StepTotals
from trimtab.trainer import ranks
from trimtab.trainer.batch import PackedBatch, Row, RowLimits, blank_row, micro_batches, pack
from trimtab.trainer.losses.averaging import Denominator
from trimtab.trainer.losses.m2po import furthest_kept, harmful_squares
from trimtab.trainer.metrics import StepMeasures, StepOutcome, TokenSums
from trimtab.trainer.model_weights import PublishedModel
from trimtab.trainer.network.policy_network import PolicyNetwork, held_here, shard
from trimtab.trainer.objective import Objective, Surroundings
from trimtab.weights.baseline import WeightChanges, WeightSource

_TINY = 1e-6
_NO_ROW = blank_row(-1)


class UnsupportedAlgorithm(ValueError):
    """The manifest asks for something this trainer does not do; the message names the field."""


class TrainingDiverged(RuntimeError):
    """Too many steps in a row had a loss or gradient that was not finite."""


class RowsMissing(RuntimeError):
    """The ranks together have trained on another number of samples than the step has."""


class Learner:
    """`step` counts the steps made: it is the version of the weights. All ranks make every call together."""

    def __init__(
        self,
        policy: Policy,
        *,
        model_path: Path,
        reference_path: Path | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Without a reference of its own, a penalty on the distance to one takes the model the policy starts from."""
        _check_supported(policy)
        self._policy = policy
        self._device = device or torch.device("cpu")
        self._objective = Objective(policy)
        algorithm = policy.algorithm
        self.network = self._network(model_path, with_entropy=algorithm.entropy_coefficient > 0)
        self._reference: PolicyNetwork | None = None
        if algorithm.kl.coefficient > 0:
            self._reference = self._network(reference_path or model_path, with_entropy=False).requires_grad_(False)
        optimizer = algorithm.optimizer
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(),
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
            fused=self._device.type == "cuda",
        )
        self._published = PublishedModel(self.model, dtype=getattr(torch, policy.trainer.dtype))
        self.step = 0
        self.before_change: Callable[[], None] = lambda: None
        """Called before an update changes the weights, for those who still read them."""
        self._sums = TokenSums()
        self._held: list[Row] = []
        self._seen = 0
        self._skipped_in_a_row = 0

    @property
    def row_limits(self) -> RowLimits:
        """Longer rows and other tokens would be an error of the model, or memory for something it was not made for."""
        config = self.network.causal_lm.config
        return RowLimits(vocabulary=config.vocab_size, longest=config.max_position_embeddings)

    @property
    def model(self) -> torch.nn.Module:
        """Under the names of its checkpoint."""
        return self.network.causal_lm

    def accumulate(self, rows: Sequence[Row]) -> None:
        """Rows of the step that is under way: of all, or of a portion while others do not exist yet.

        Where something has to be decided over the whole step first they are only kept.
        """
        self._seen += len(rows)
        if self._needs_whole_step:
            self._held += rows
        else:
            self._backward(self._packs(rows), samples=len(rows))

    def update(self, totals: StepTotals) -> StepOutcome:
        """The step's update or updates, from all its rows."""
        self._check_seen(totals)
        if self._needs_whole_step:
            held, self._held = self._held, []
            outcome = self._updates(held)
        else:
            outcome = self._apply()
        self._count_skipped(skipped=outcome.skipped)
        self.step += 1
        return outcome

    def weights(self) -> WeightSource | WeightChanges:
        """The weights as pools load them, to be read before the next update, or what changed in them since the last
        call.
        """
        return self._published.weights()

    @property
    def _needs_whole_step(self) -> bool:
        algorithm = self._policy.algorithm
        return (
            self._objective.looks_at_the_step_first
            or algorithm.normalize_batch_advantages
            or algorithm.updates_per_batch > 1
        )

    def _updates(self, rows: Sequence[Row]) -> StepOutcome:
        algorithm = self._policy.algorithm
        if algorithm.normalize_batch_advantages:
            rows = normalized_advantages(rows)
        shares = parts(rows, algorithm.updates_per_batch)
        dealt = [self._packs(share) for share in shares]
        begin: list[list[torch.Tensor] | None] = [None] * len(dealt)
        if self._objective.remembers_the_beginning and len(dealt) > 1:
            begin = [self._logprobs(packs) for packs in dealt]
        bound = self._objective.recipe.second_moment_bound
        outcomes = []
        for share, packs, begun in zip(shares, dealt, begin, strict=True):
            if bound is None:
                self._backward(packs, samples=len(share), begun=begun)
            else:
                now = self._logprobs(packs)
                limit = second_moment_limit(packs, now, bound=bound)
                self._backward(packs, samples=len(share), begun=now, limit=limit)
            outcomes.append(self._apply())
        return outcomes[-1]

    def _packs(self, rows: Sequence[Row]) -> list[PackedBatch]:
        """As many on every rank: a layer that is spread over the ranks is put together by all of them at once."""
        packed = micro_batches(rows, max_tokens=self._policy.trainer.micro_batch_tokens)
        (most,) = ranks.maxima(len(packed))
        packed += [(_NO_ROW,)] * (int(most) - len(packed))
        return [pack(rows, device=self._device) for rows in packed]

    @torch.no_grad()
    def _logprobs(self, packs: Sequence[PackedBatch]) -> list[torch.Tensor]:
        return [self.network(batch).logprobs for batch in packs]

    def _backward(
        self,
        packs: Sequence[PackedBatch],
        *,
        samples: int,
        begun: Sequence[torch.Tensor] | None = None,
        limit: float = float("inf"),
    ) -> None:
        self._sums += TokenSums(samples=samples)
        for number, batch in enumerate(packs):
            reference = None
            if self._reference is not None:
                with torch.no_grad():
                    reference = self._reference(batch).logprobs
            around = Surroundings(
                begin_logprobs=None if begun is None else begun[number],
                reference_logprobs=reference,
                second_moment_limit=limit,
                version=self.step,
            )
            loss, sums = self._objective.loss(batch, self.network(batch), around)
            loss.backward()  # type: ignore[no-untyped-call]
            self._sums += sums

    def _apply(self) -> StepOutcome:
        """One update from the gradients at hand."""
        sums, self._sums = self._sums.over_ranks(), TokenSums()
        tokens = self._objective.recipe.averaging.denominator is Denominator.TOKENS
        denominator = max(1.0, sums.tokens if tokens else sums.samples)
        # Gradients are sums over the step, averaged over the ranks where the model is spread over them.
        scale = ranks.world_size() / denominator
        gradients = [held_here(parameter.grad) for parameter in self.network.parameters() if parameter.grad is not None]
        (squares,) = ranks.sums(float(torch.nn.utils.get_total_norm(gradients)) ** 2)
        norm = scale * math.sqrt(squares)
        clipped = scale * min(1.0, self._policy.algorithm.optimizer.max_grad_norm / (norm + _TINY))
        torch._foreach_mul_(gradients, clipped)
        loss = sums.loss / denominator
        skipped = not (math.isfinite(loss) and math.isfinite(norm))
        if not skipped:
            factor = rate_factor(self._policy.algorithm.schedule, self.step)
            for group in self.optimizer.param_groups:
                group["lr"] = self._policy.algorithm.optimizer.learning_rate * factor
            self.before_change()
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with_entropy = self._policy.algorithm.entropy_coefficient > 0
        return StepOutcome(
            loss=loss, grad_norm=norm, skipped=skipped, measures=StepMeasures.of(sums, with_entropy=with_entropy)
        )

    def _network(self, model_path: Path, *, with_entropy: bool) -> PolicyNetwork:
        """On a GPU it computes in the manifest's type; on a CPU in float32, where bfloat16 is slow and no smaller."""
        settings = self._policy.trainer
        network = PolicyNetwork.load(
            model_path,
            temperature=self._policy.sampling.temperature,
            with_entropy=with_entropy,
            gradient_checkpointing=settings.gradient_checkpointing,
        ).to(self._device)
        on_gpu = self._device.type == "cuda"
        compute_dtype = getattr(torch, settings.dtype) if on_gpu else torch.float32
        if compute_dtype is torch.bfloat16:
            network.speed_up()
        if on_gpu or ranks.world_size() > 1:
            shard(network, compute_dtype=compute_dtype)
        return network

    def _check_seen(self, totals: StepTotals) -> None:
        (seen,) = ranks.sums(self._seen)
        self._seen = 0
        if seen != totals.samples:
            raise RowsMissing(
                f"step {self.step} has {totals.samples} samples, the ranks had {seen:.0f}: a row was lost or doubled"
            )

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


def normalized_advantages(rows: Sequence[Row]) -> list[Row]:
    """With mean 0 and deviation 1 over all samples of the step. Equal advantages become zeros."""
    count, total = ranks.sums(len(rows), math.fsum(row.advantage for row in rows))
    mean = total / max(1.0, count)
    (squares,) = ranks.sums(math.fsum((row.advantage - mean) ** 2 for row in rows))
    deviation = math.sqrt(squares / max(1.0, count - 1)) + _TINY
    return [replace(row, advantage=(row.advantage - mean) / deviation) for row in rows]


def parts(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """This rank's rows of each of `count` equal parts of the step. Keys decide, wherever a row was dealt to."""
    if count == 1:
        return [list(rows)]
    keys = ranks.gathered(torch.tensor([row.key for row in rows], dtype=torch.int64))
    position = {key: number for number, key in enumerate(keys.sort().values.tolist())}
    dealt: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        dealt[position[row.key] * count // len(position)].append(row)
    return dealt


def second_moment_limit(packs: Sequence[PackedBatch], logprobs: Sequence[torch.Tensor], *, bound: float) -> float:
    """The largest squared log ratio that M2PO keeps, given what the policy says now to this rank's packs."""
    squares = [
        harmful_squares(now - batch.sampled_logprobs, batch.advantages)
        for batch, now in zip(packs, logprobs, strict=True)
    ]
    return furthest_kept(ranks.gathered(torch.cat(squares)), bound=bound)


def rate_factor(schedule: Schedule, step: int) -> float:
    """What the peak rate is multiplied with at a step, counted from 0."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.type == "Constant" or schedule.decay_steps is None:
        return 1.0
    progress = min(1.0, (step - schedule.warmup_steps) / schedule.decay_steps)
    remaining = 1.0 - progress if schedule.type == "Linear" else (1.0 + math.cos(math.pi * progress)) / 2.0
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * remaining
