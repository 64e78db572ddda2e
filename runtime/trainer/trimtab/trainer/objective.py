"""The loss of a pack: the algorithm's own, the correction of what was sampled by another policy, KL and entropy."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trimtab.api.policy import Policy
from trimtab.trainer.batch import PackedBatch
from trimtab.trainer.losses.corrections import importance_weights
from trimtab.trainer.losses.kl import kl_divergence
from trimtab.trainer.losses.m2po import kept
from trimtab.trainer.losses.recipe import RatioTo, Recipe
from trimtab.trainer.losses.registry import correction_of, needed_columns, recipe_of
from trimtab.trainer.losses.tokens import LossTokens
from trimtab.trainer.metrics import TokenSums
from trimtab.trainer.network.chosen_logprobs import TokenScores


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a pack's loss needs to know besides the pack and the model's own word on it."""

    begin_logprobs: torch.Tensor | None = None
    """Of the policy at the beginning of the step; None where that is the present one."""
    reference_logprobs: torch.Tensor | None = None
    answer_log_ratios: torch.Tensor | None = None
    """Of each sequence's whole answer, where answers lie in several sequences and the loss asks for it."""
    second_moment_limit: float = float("inf")


class Objective:
    """What a policy's manifest asks to minimise."""

    def __init__(self, policy: Policy, recipe: Recipe | None = None) -> None:
        """The recipe is that of the policy's algorithm, unless it has one of its own."""
        self._algorithm = policy.algorithm
        self._longest_answer = policy.sampling.max_tokens
        self.recipe = recipe or recipe_of(policy.algorithm)
        self.columns = needed_columns(policy.algorithm, self.recipe)
        """Stages whose word on every trained token is needed."""
        self._correction = correction_of(policy.algorithm)

    @property
    def looks_at_the_step_first(self) -> bool:
        """A token's part in the loss depends on all others of the step."""
        return self.recipe.second_moment_bound is not None

    @property
    def remembers_the_beginning(self) -> bool:
        """Ratios are taken to the policy before the step's first update."""
        return self.recipe.ratio_to is RatioTo.STEP_BEGIN

    def loss(self, batch: PackedBatch, scores: TokenScores, around: Surroundings) -> tuple[torch.Tensor, TokenSums]:
        """The sum that divided by the step's denominator is its loss, and what else is worth knowing."""
        now = scores.logprobs.detach()
        begin = now if around.begin_logprobs is None else around.begin_logprobs
        weights = self._weights(batch, begin, limit=around.second_moment_limit)
        tokens = LossTokens(
            logprobs=scores.logprobs,
            old_logprobs=begin if self.remembers_the_beginning else batch.sampled_logprobs,
            advantages=batch.advantages,
            weights=weights,
            sequences=batch.sequences,
            answer_lengths=batch.answer_lengths,
            answer_log_ratios=around.answer_log_ratios,
            longest_answer=self._longest_answer,
            values=scores.values,
            columns=batch.columns,
        )
        values = self.recipe.token_losses(tokens, self.recipe.clip)
        reference_kl = now.new_zeros(())
        if around.reference_logprobs is not None:
            divergence = kl_divergence(
                scores.logprobs,
                reference_logprobs=around.reference_logprobs,
                estimator=self._algorithm.kl.estimator,
            )
            values = values + self._algorithm.kl.coefficient * divergence
            reference_kl = divergence.detach().sum()
        if scores.entropies is not None:
            values = values - self._algorithm.entropy_coefficient * scores.entropies
        loss = self.recipe.averaging.total(tokens, values)
        return loss, TokenSums(
            loss=loss.detach().double(),
            tokens=len(now),
            drift=kl_divergence(batch.sampled_logprobs, reference_logprobs=now, estimator="k3").sum().double(),
            left_out=(weights == 0).sum(),
            reference_kl=reference_kl.double(),
            entropy=0.0 if scores.entropies is None else scores.entropies.detach().sum().double(),
            **self._value_sums(batch, scores),
        )

    def _value_sums(self, batch: PackedBatch, scores: TokenScores) -> dict[str, torch.Tensor]:
        critic = self._algorithm.critic
        if scores.values is None or critic is None:
            return {}
        returns = batch.advantages.double() + batch.columns[critic.stage]
        return {
            "returns": returns.sum(),
            "squared_returns": returns.square().sum(),
            "value_errors": (scores.values.detach() - returns).square().sum(),
        }

    def _weights(self, batch: PackedBatch, begin: torch.Tensor, *, limit: float) -> torch.Tensor:
        if self.recipe.second_moment_bound is not None:
            return kept(begin - batch.sampled_logprobs, batch.advantages, limit=limit).to(begin.dtype)
        if self.recipe.ratio_to is RatioTo.SAMPLED:
            return torch.ones_like(begin)
        return importance_weights(begin, sampled_logprobs=batch.sampled_logprobs, correction=self._correction)
