"""An algorithm as a user would write it (tapered REINFORCE), and ones that must be refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from trimtab.trainer.recipes import (
    OVER_TOKENS,
    Averaging,
    ClipRange,
    Denominator,
    LossTokens,
    Recipe,
    RowRewards,
    bounded_ratio,
)


class Tapered:
    """Good answers are learned whatever made them, bad ones the less the further the policy has left them."""

    def __init__(self, *, taper: float = 1.0) -> None:
        self._taper = taper

    def recipe(self) -> Recipe:
        return Recipe(token_losses=self._losses, averaging=OVER_TOKENS)

    def _losses(self, tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
        tapered = bounded_ratio(tokens.log_ratio.detach()).clamp(max=self._taper)
        ratio = torch.where(tokens.advantages < 0, tapered, torch.ones_like(tapered))
        return -tokens.weights * ratio * tokens.advantages * tokens.logprobs


class Surprised(Tapered):
    """A token counts for its reward and for how far another model is from it: needs that model's word."""

    def recipe(self) -> Recipe:
        return Recipe(
            token_losses=self._losses, averaging=OVER_TOKENS, advantages=self._advantages, columns=("logprobs",)
        )

    def _advantages(self, row: RowRewards, compared: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return compared + 0.1 * (row.columns["logprobs"] - row.logprobs)


class WithoutRecipe:
    pass


class NotARecipe:
    def recipe(self) -> object:
        return {"token_losses": None}


class Raising:
    def recipe(self) -> Recipe:
        raise RuntimeError("no such thing")


def _constant(tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
    return torch.ones_like(tokens.advantages)


def _one(tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
    return (tokens.logprobs * tokens.advantages).sum()


def _infinite(tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
    return tokens.logprobs / 0.0


def _plain(tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
    return -tokens.advantages * tokens.logprobs


def _mean(tokens: LossTokens, values: torch.Tensor) -> torch.Tensor:
    return values.mean() if len(values) else values.sum()


class Unlearnable:
    def recipe(self) -> Recipe:
        return Recipe(token_losses=_constant, averaging=OVER_TOKENS)


class Summed:
    def recipe(self) -> Recipe:
        return Recipe(token_losses=_one, averaging=OVER_TOKENS)


class Infinite:
    def recipe(self) -> Recipe:
        return Recipe(token_losses=_infinite, averaging=OVER_TOKENS)


class Averaged:
    """Its mean is over the tokens at hand, so that micro-batches would change the update."""

    def recipe(self) -> Recipe:
        return Recipe(token_losses=_plain, averaging=Averaging(total=_mean, denominator=Denominator.EPISODES))


class OneAdvantage:
    def recipe(self) -> Recipe:
        return Recipe(token_losses=_plain, averaging=OVER_TOKENS, advantages=lambda row, compared: compared[:1])


class Valued:
    def recipe(self) -> Recipe:
        return Recipe(token_losses=_plain, averaging=OVER_TOKENS, value_head=True)
