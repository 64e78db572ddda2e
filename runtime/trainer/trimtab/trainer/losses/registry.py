"""The algorithm that a manifest names, with the manifest's own settings laid over it."""

from __future__ import annotations

from dataclasses import replace

from trimtab.api.algorithm import Algorithm, AlgorithmName, Correction
from trimtab.trainer.gae import CriticAdvantages
from trimtab.trainer.losses.cispo import CISPO
from trimtab.trainer.losses.clipping import ClipRange
from trimtab.trainer.losses.critic import critic
from trimtab.trainer.losses.dapo import DAPO
from trimtab.trainer.losses.distill import distill
from trimtab.trainer.losses.drgrpo import DRGRPO
from trimtab.trainer.losses.grpo import GRPO
from trimtab.trainer.losses.gspo import GSPO
from trimtab.trainer.losses.m2po import M2PO
from trimtab.trainer.losses.ppo import PPO
from trimtab.trainer.losses.recipe import RatioTo, Recipe
from trimtab.trainer.losses.rloo import RLOO

_RECIPES: dict[AlgorithmName, Recipe] = {
    "m2po": M2PO,
    "grpo": GRPO,
    "drgrpo": DRGRPO,
    "dapo": DAPO,
    "ppo": PPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "rloo": RLOO,
}


class RecipeMissing(ValueError):
    """An algorithm that is not ours came without its recipe."""


_UNBOUNDED: tuple[AlgorithmName, ...] = ("ppo", "rloo")


def correction_of(algorithm: Algorithm) -> Correction:
    """Unless the manifest says: a weight where nothing else bounds the distance to the policy that sampled. A clip
    around that policy does. Around the beginning of the step it would bound nothing, if there is one update a step.
    """
    if algorithm.correction is not None:
        return algorithm.correction
    return Correction() if algorithm.name in _UNBOUNDED else Correction(type="None")


def _published(algorithm: Algorithm) -> Recipe:
    if algorithm.distill is not None:
        return distill(stage=algorithm.distill.stage, reward_weight=algorithm.distill.reward_weight)
    asked = algorithm.critic
    recipe = critic(stage=asked.stage) if algorithm.name == "critic" and asked else _RECIPES.get(algorithm.name)
    if recipe is None:
        raise RecipeMissing(f"algorithm.name: there is no recipe of {algorithm.name} here")
    if asked is None:
        return recipe
    advantages = CriticAdvantages(
        stage=asked.stage, discount=asked.discount, decay=asked.lambda_, credit=algorithm.credit
    )
    return replace(recipe, columns=(asked.stage,), advantages=advantages)


def needed_columns(algorithm: Algorithm, recipe: Recipe) -> tuple[str, ...]:
    """Stages without whose word on a row it is not trained on."""
    stage = algorithm.kl.stage
    return tuple(dict.fromkeys([*recipe.columns, *([] if stage is None else [stage])]))


def recipe_of(algorithm: Algorithm, own: Recipe | None = None) -> Recipe:
    """`own` is that of an algorithm that the manifest has from elsewhere."""
    recipe = own or _published(algorithm)
    clip = algorithm.clip
    if clip is not None:
        published = recipe.clip
        recipe = replace(
            recipe,
            clip=ClipRange(
                low=published.low if clip.low is None else clip.low,
                high=published.high if clip.high is None else clip.high,
                dual=clip.dual,
            ),
        )
    if algorithm.normalize_group_rewards is not None:
        recipe = replace(recipe, normalize_group_rewards=algorithm.normalize_group_rewards)
    if algorithm.m2_threshold is not None:
        recipe = replace(recipe, second_moment_bound=algorithm.m2_threshold)
    if recipe.ratio_to is RatioTo.EITHER:
        corrected = correction_of(algorithm).type != "None"
        recipe = replace(recipe, ratio_to=RatioTo.STEP_BEGIN if corrected else RatioTo.SAMPLED)
    return recipe
