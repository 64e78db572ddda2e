"""Algorithms of the user's own: a class whose `recipe()` says what one of ours would, and what is asked of it before
anything is trained.

    from trimtab.trainer.recipes import OVER_TOKENS, LossTokens, Recipe

    class Reinforce:
        def __init__(self, *, scale: float = 1.0) -> None:
            self._scale = scale

        def recipe(self) -> Recipe:
            return Recipe(token_losses=self._losses, averaging=OVER_TOKENS)

        def _losses(self, tokens: LossTokens, clip: ClipRange) -> torch.Tensor:
            return -self._scale * tokens.weights * tokens.advantages * tokens.logprobs
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from trimtab.api.algorithm import Algorithm
from trimtab.api.policy import Policy
from trimtab.fabric.plugins import load_class
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.lease import Episode
from trimtab.trainer.losses.averaging import ANSWER_SUMS, OVER_ANSWERS, OVER_PLACES, OVER_TOKENS, Averaging, Denominator
from trimtab.trainer.losses.clipping import ClipRange, bounded_ratio, clipped_tokens
from trimtab.trainer.losses.recipe import RatioTo, Recipe
from trimtab.trainer.losses.registry import needed_columns, recipe_of
from trimtab.trainer.losses.tokens import LossTokens
from trimtab.trainer.row_rewards import Advantages, RowRewards

__all__ = [
    "ANSWER_SUMS",
    "OVER_ANSWERS",
    "OVER_PLACES",
    "OVER_TOKENS",
    "Advantages",
    "Averaging",
    "ClipRange",
    "Denominator",
    "LossTokens",
    "RatioTo",
    "Recipe",
    "RowRewards",
    "bounded_ratio",
    "clipped_tokens",
    "policy_recipe",
]

_ANSWERS = (3, 0, 5)
"""Trained tokens of the answers that a recipe is tried on. One has none."""
_TOLERANCE = 1e-6


def policy_recipe(policy: Policy, *, folder: Path | None) -> Recipe:
    """That of the policy's algorithm, which may be the user's own: from the folder first, where the workflow's code is.
    Raises JobMisconfigured, with the field.
    """
    custom = policy.algorithm.custom
    if custom is None:
        return recipe_of(policy.algorithm)
    field = f"policies[{policy.name}].algorithm.custom"
    made = load_class(custom.entrypoint, custom.args, field=field, folder=folder)
    say = getattr(made, "recipe", None)
    if not callable(say):
        raise JobMisconfigured(f"{field}.entrypoint {custom.entrypoint!r} has no `def recipe(self) -> Recipe`")
    # Code of the user's: whatever it raises is about the manifest, and says so.
    try:
        own = say()
    except Exception as error:
        raise JobMisconfigured(f"{field}: recipe() of {custom.entrypoint} failed: {error!r}") from error
    if not isinstance(own, Recipe):
        raise JobMisconfigured(
            f"{field}: recipe() of {custom.entrypoint} returned {type(own).__name__}, not a"
            " trimtab.trainer.recipes.Recipe"
        )
    return checked(recipe_of(policy.algorithm, own), policy.algorithm, field=field)


def checked(recipe: Recipe, algorithm: Algorithm, *, field: str) -> Recipe:
    """The recipe, if it does on made-up answers what one has to: finite losses with a gradient, one for each token,
    that add up however a step is cut into micro-batches, and advantages for each token. Raises JobMisconfigured.
    """
    try:
        objection = _objection(recipe, needed_columns(algorithm, recipe))
    except Exception as error:
        raise JobMisconfigured(f"{field}: the recipe failed on made-up answers: {error!r}") from error
    if objection is not None:
        raise JobMisconfigured(f"{field}: {objection}")
    return recipe


def _objection(recipe: Recipe, columns: tuple[str, ...]) -> str | None:
    if recipe.value_head:
        return "value_head is for algorithm critic; a recipe of your own trains probabilities"
    if not all(isinstance(name, str) for name in recipe.columns):
        return "columns must be names of stages"
    whole = _made_up(range(len(_ANSWERS)), columns)
    losses = recipe.token_losses(whole, recipe.clip)
    if not isinstance(losses, torch.Tensor) or losses.shape != whole.logprobs.shape:
        shape = list(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
        return f"token_losses must give one loss for each of {len(whole.logprobs)} tokens, and gave {shape}"
    total = recipe.averaging.total(whole, losses)
    if not total.requires_grad:
        return "the loss has no gradient: token_losses must be made of tokens.logprobs"
    (slope,) = torch.autograd.grad(total, whole.logprobs)
    if not (total.isfinite() and slope.isfinite().all()):
        return "the loss or its gradient is not finite"
    parts = 0.0
    for number in range(len(_ANSWERS)):
        part = _made_up([number], columns)
        parts += recipe.averaging.total(part, recipe.token_losses(part, recipe.clip)).item()
    if abs(parts - total.item()) > _TOLERANCE * max(1.0, abs(parts)):
        return (
            f"losses of micro-batches must add up to that of the step, and {parts:.6g} is not {total.item():.6g}: make"
            " no statistics over the tokens at hand"
        )
    return _advantages_objection(recipe.advantages, columns) if recipe.advantages is not None else None


def _advantages_objection(advantages: Advantages, columns: tuple[str, ...]) -> str | None:
    count = _ANSWERS[0]
    numbers = np.linspace(-1.0, -0.5, count, dtype=np.float32)
    row = RowRewards(
        reward=1.0,
        episode=Episode(reward=1.0, trained_tokens=count),
        trained_tokens=count,
        logprobs=numbers,
        columns=dict.fromkeys(columns, numbers),
    )
    made = np.asarray(advantages(row, np.full(count, 0.5, dtype=np.float32)))
    if made.shape != (count,) or not np.issubdtype(made.dtype, np.number) or not np.isfinite(made).all():
        return f"advantages must be {count} finite numbers for {count} trained tokens, and have the shape {made.shape}"
    return None


def _made_up(answers: Sequence[int], columns: tuple[str, ...]) -> LossTokens:
    """Of these answers, each the same whichever others are there."""
    counts = [_ANSWERS[number] for number in answers]
    places = torch.cat([torch.arange(count) + 10 * number for number, count in zip(answers, counts, strict=True)])
    old = -0.5 - 0.01 * places.double()
    return LossTokens(
        logprobs=(old + 0.05 * torch.sin(places.double())).requires_grad_(),
        old_logprobs=old,
        advantages=torch.cos(places.double()),
        weights=torch.ones_like(old),
        sequences=torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)),
        answer_lengths=torch.tensor(counts),
        longest_answer=8,
        columns=dict.fromkeys(columns, old - 0.1),
    )
