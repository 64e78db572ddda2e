"""Model and optimiser of one rank: a step's rows in, an update out, the same on every rank. What is decided over a
whole step depends neither on micro-batches, nor on how episodes are cut into rows, nor on which rank has a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from trimtab.api.algorithm import Schedule
from trimtab.api.lora import Lora
from trimtab.api.policy import Policy
from trimtab.api.support import unsupported_in_policy
from trimtab.fabric.wire.lease import StepTotals
from trimtab.trainer import ranks
from trimtab.trainer.batch import PackedBatch, Row, RowEpisode, RowLimits, blank_row, in_order, micro_batches, pack
from trimtab.trainer.dither import dither
from trimtab.trainer.losses.averaging import Denominator
from trimtab.trainer.losses.recipe import Recipe
from trimtab.trainer.metrics import StepMeasures, StepOutcome, TokenSums
from trimtab.trainer.model_weights import PublishedModel
from trimtab.trainer.network.adapters import adapters_of, begin, description_of, switched_off
from trimtab.trainer.network.chosen_logprobs import TokenScores
from trimtab.trainer.network.model_files import UnsupportedModel
from trimtab.trainer.network.packed_network import PackedNetwork, Placement
from trimtab.trainer.network.policy_network import PolicyNetwork
from trimtab.trainer.network.spread import held_here
from trimtab.trainer.network.value_network import ValueNetwork
from trimtab.trainer.objective import Objective, Surroundings
from trimtab.trainer.over_step import Share, answer_log_ratios, dealt, normalized_advantages, second_moment_limit
from trimtab.trainer.stand_in import StandIn, as_published
from trimtab.trainer.witness import Witness
from trimtab.weights.baseline import WeightChanges, WeightShare, WeightSource

_TINY = 1e-6
_NO_ROW = blank_row(-1, RowEpisode(group="", index=-1, rows=1, trained_tokens=0))


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
        recipe: Recipe | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Without a reference of its own, a penalty on the distance to one takes the model the policy starts from. The
        recipe is that of the policy's algorithm, unless it has one of its own.
        """
        _check_supported(policy)
        self._policy = policy
        self._device = device or torch.device("cpu")
        published = getattr(torch, policy.trainer.dtype)
        # On a CPU bfloat16 is slow, and no smaller.
        self._computing = published if self._device.type == "cuda" else torch.float32
        self._objective = Objective(policy, recipe)
        algorithm = policy.algorithm
        self.network: PackedNetwork = (
            ValueNetwork.load(model_path, self._placement())
            if self._objective.recipe.value_head
            else self._network(model_path, with_entropy=algorithm.entropy_coefficient > 0, lora=policy.lora)
        )
        _check_context(policy, longest=self.network.causal_lm.config.max_position_embeddings)
        if policy.lora is None:
            self.model: torch.nn.Module = self.network.causal_lm
            """What is trained, under the names that it is published by."""
            dither(self.network, published=published)
        else:
            begin(self.network.causal_lm)
            self.model = adapters_of(self.network.causal_lm)
        self._reference: PolicyNetwork | None = None
        in_memory = algorithm.kl.coefficient > 0 and algorithm.kl.stage is None
        if in_memory and (policy.lora is None or reference_path is not None):
            self._reference = self._network(reference_path or model_path, with_entropy=False)
            if policy.lora is None:
                StandIn(self._reference).round(published)
            self._reference.requires_grad_(False)
        optimizer = algorithm.optimizer
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in self.network.parameters() if parameter.requires_grad],
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
            fused=self._device.type == "cuda",
        )
        self._published = PublishedModel(self.model, dtype=published, adapter=description_of(policy))
        stand_in = StandIn(self.network)
        self._as_published = as_published(stand_in, published=published, computing=self._computing)
        self._witness = (
            Witness(self.network, stand_in, published=published) if isinstance(self.network, PolicyNetwork) else None
        )
        """A critic says nothing that an engine's logprobs could be compared with."""
        self.step = 0
        self.before_change: Callable[[], None] = lambda: None
        """Called before an update changes the weights, for those who still read them."""
        self._sums = TokenSums()
        self._held: list[Row] = []
        self._begun: dict[int, torch.Tensor] = {}
        """Of rows that are held, by key, what the policy said before the first update."""
        self._seen = 0
        self._skipped_in_a_row = 0

    @property
    def row_limits(self) -> RowLimits:
        """Longer rows and other tokens would be an error of the model, or memory for something it was not made for."""
        config, asked = self.network.causal_lm.config, self._policy.weights.max_context_tokens
        return RowLimits(vocabulary=config.vocab_size, longest=asked or config.max_position_embeddings)

    def accumulate(self, rows: Sequence[Row]) -> None:
        """Rows of the step that is under way: whole groups of all of it, or of a portion while others do not exist yet.

        Where something has to be decided over the whole step first they are only looked at, and kept: the second pass
        has only the gradient left to do, and packs them anew, as portions make small packs.
        """
        self._seen += len(rows)
        if self._witness is not None:
            self._witness.notice(rows)
        if not self._keeps:
            self._backward(self._packed(rows))
            return
        if self._remembers:
            self._remember(rows)
        self._held += rows

    def update(self, totals: StepTotals) -> StepOutcome:
        """The step's update or updates, from all its rows."""
        self._check_seen(totals)
        algorithm = self._policy.algorithm
        updates: list[list[Share]] = [[]]
        if self._keeps:
            held, self._held = self._held, []
            updates = [[self._packed(rows)] for rows in dealt(held, algorithm.updates_per_batch)]
            self._begun = {}
        if algorithm.normalize_batch_advantages:
            updates = normalized_advantages(updates)
        outcomes = [self._update(shares) for shares in updates]
        self._count_skipped(skipped=outcomes[-1].skipped)
        # A step that was skipped has not asked yet: other weights are in their place meanwhile.
        self.before_change()
        self.step += 1
        if self._witness is None:
            return outcomes[-1]
        self._witness.measure(blank=_NO_ROW, device=self._device)
        measures = replace(outcomes[-1].measures, logprob_mismatch=self._witness.mismatch)
        return replace(outcomes[-1], measures=measures)

    def weights(self) -> WeightSource | WeightShare | WeightChanges:
        """The weights as pools load them, to be read before the next update, or what changed in them since the last
        call; of several ranks each gets a copy of its share.
        """
        if self._witness is not None:
            self._witness.keep(self.step)
        return self._published.weights()

    def _update(self, shares: Sequence[Share]) -> StepOutcome:
        bound = self._objective.recipe.second_moment_bound
        limit = float("inf")
        if bound is not None:
            shares = [share if share.begun is not None else self._looked_at(share) for share in shares]
            limit = second_moment_limit(shares, bound=bound)
        for share in shares:
            self._backward(share, limit=limit)
        return self._apply()

    def _packed(self, rows: Sequence[Row]) -> Share:
        packed = self._micro_batches(rows)
        (cut,) = ranks.maxima(any(row.episode.rows > 1 for row in rows))
        return Share(
            packs=tuple(self._pack(rows) for rows in packed),
            episodes=math.fsum(1 / row.episode.rows for row in rows),
            cut=bool(cut),
            begun=tuple(map(self._remembered, packed)) if self._remembers else None,
            versions_behind=self._versions_behind(rows),
        )

    def _micro_batches(self, rows: Sequence[Row]) -> list[tuple[Row, ...]]:
        """As many packs on every rank: a layer that is spread over the ranks is put together by all of them at once."""
        packed = micro_batches(rows, max_tokens=self._policy.trainer.micro_batch_tokens)
        (most,) = ranks.maxima(len(packed))
        return packed + [(_NO_ROW,)] * (int(most) - len(packed))

    def _pack(self, rows: Sequence[Row]) -> PackedBatch:
        return pack(rows, device=self._device, columns=self._objective.columns)

    @property
    def _keeps(self) -> bool:
        """What a row does to the gradient is known when all rows of the step are there."""
        algorithm, looks = self._policy.algorithm, self._objective.looks_at_the_step_first
        return looks or algorithm.normalize_batch_advantages or algorithm.updates_per_batch > 1

    @property
    def _remembers(self) -> bool:
        if self._policy.algorithm.updates_per_batch > 1:
            return self._objective.remembers_the_beginning
        return self._objective.looks_at_the_step_first

    def _remember(self, rows: Sequence[Row]) -> None:
        packed = self._micro_batches(rows)
        for part, said in zip(packed, self._logprobs([self._pack(rows) for rows in packed]), strict=True):
            ordered = in_order(part)
            counts = [row.trained_tokens for row in ordered]
            self._begun |= dict(zip((row.key for row in ordered), torch.split(said, counts), strict=True))

    def _remembered(self, rows: Sequence[Row]) -> torch.Tensor:
        nothing = torch.zeros(0, device=self._device)
        return torch.cat([nothing, *(self._begun[row.key] for row in in_order(rows) if row.trained_tokens)])

    def _versions_behind(self, rows: Sequence[Row]) -> float:
        critic = self._policy.algorithm.critic
        if critic is None or not self._objective.recipe.value_head:
            return 0.0
        return math.fsum(
            row.trained_tokens * max(0, self.step - row.column_versions.get(critic.stage, self.step)) for row in rows
        )

    def _looked_at(self, share: Share) -> Share:
        return replace(share, begun=self._logprobs(share.packs))

    @torch.no_grad()
    def _logprobs(self, packs: Sequence[PackedBatch]) -> tuple[torch.Tensor, ...]:
        with self._as_published():
            return tuple(self.network(batch).logprobs for batch in packs)

    def _answer_log_ratios(self, share: Share) -> Sequence[torch.Tensor | None]:
        """Of whole answers, where a part of one may be in another pack or on another rank. In an update from where the
        step began all of them are zero, and need no look.
        """
        recipe, old = self._objective.recipe, share.begun
        if not self._objective.remembers_the_beginning:
            old = tuple(batch.sampled_logprobs for batch in share.packs)
        if not (recipe.ratio_of_answers and share.cut) or old is None:
            return [None] * len(share.packs)
        now = self._logprobs(share.packs)
        return answer_log_ratios(share.packs, [mine - theirs for mine, theirs in zip(now, old, strict=True)])

    def _backward(self, share: Share, *, limit: float = float("inf")) -> None:
        self._sums += TokenSums(episodes=share.episodes, versions_behind=share.versions_behind)
        answers = self._answer_log_ratios(share)
        with self._as_published():
            for number, batch in enumerate(share.packs):
                around = Surroundings(
                    begin_logprobs=None if share.begun is None else share.begun[number],
                    reference_logprobs=self._reference_logprobs(batch),
                    answer_log_ratios=answers[number],
                    second_moment_limit=limit,
                )
                loss, sums = self._objective.loss(batch, self.network(batch), around)
                loss.backward()  # type: ignore[no-untyped-call]
                self._sums += sums

    @torch.no_grad()
    def _reference_logprobs(self, batch: PackedBatch) -> torch.Tensor | None:
        kl = self._policy.algorithm.kl
        if kl.coefficient == 0:
            return None
        if kl.stage is not None:
            return batch.columns[kl.stage]
        if self._reference is not None:
            scores: TokenScores = self._reference(batch)
            return scores.logprobs
        with switched_off(self.network):
            scores = self.network(batch)
        return scores.logprobs

    def _apply(self) -> StepOutcome:
        """One update from the gradients at hand."""
        sums, self._sums = self._sums.over_ranks(), TokenSums()
        tokens = self._objective.recipe.averaging.denominator is Denominator.TOKENS
        denominator = max(1.0, sums.tokens if tokens else sums.episodes)
        # Gradients are sums over the step, averaged over the ranks where the model is spread over them.
        scale = ranks.world_size() / denominator
        gradients = [held_here(parameter.grad) for parameter in self.network.parameters() if parameter.grad is not None]
        (squares,) = ranks.sums(float(torch.nn.utils.get_total_norm(gradients)) ** 2)
        norm = scale * math.sqrt(squares)
        clipped = scale * min(1.0, self._policy.algorithm.optimizer.max_grad_norm / (norm + _TINY))
        torch._foreach_mul_(gradients, clipped)
        loss = sums.loss / denominator
        skipped = not (math.isfinite(loss) and math.isfinite(norm))
        rate = self._policy.algorithm.optimizer.learning_rate * rate_factor(self._policy.algorithm.schedule, self.step)
        if not skipped:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.before_change()
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with_entropy = self._policy.algorithm.entropy_coefficient > 0
        measures = StepMeasures.of(sums, with_entropy=with_entropy, with_values=self._objective.recipe.value_head)
        return StepOutcome(loss=loss, grad_norm=norm, learning_rate=rate, skipped=skipped, measures=measures)

    def _network(self, model_path: Path, *, with_entropy: bool, lora: Lora | None = None) -> PolicyNetwork:
        placement = replace(self._placement(), lora=lora)
        return PolicyNetwork.load(
            model_path, sampling=self._policy.sampling, with_entropy=with_entropy, placement=placement
        )

    def _placement(self) -> Placement:
        spread = self._device.type == "cuda" or ranks.world_size() > 1
        return Placement(
            gradient_checkpointing=self._policy.trainer.gradient_checkpointing,
            device=self._device,
            compute_dtype=self._computing if spread else None,
        )

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


def _check_context(policy: Policy, *, longest: int) -> None:
    asked = policy.weights.max_context_tokens
    if asked is not None and asked > longest:
        raise UnsupportedModel(
            f"policies[{policy.name}].model.maxContextTokens: {asked} is more than the {longest} of the model's"
            " configuration; lower it, or raise max_position_embeddings there"
        )


def rate_factor(schedule: Schedule, step: int) -> float:
    """What the peak rate is multiplied with at a step, counted from 0."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.type == "Constant" or schedule.decay_steps is None:
        return 1.0
    progress = min(1.0, (step - schedule.warmup_steps) / schedule.decay_steps)
    remaining = 1.0 - progress if schedule.type == "Linear" else (1.0 + math.cos(math.pi * progress)) / 2.0
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * remaining
