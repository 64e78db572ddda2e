"""The algorithm that a manifest names, with the manifest's own settings laid over it."""

from __future__ import annotations

from dataclasses import replace

from trimtab.api.algorithm import Algorithm, AlgorithmName, Correction
from trimtab.trainer.losses.cispo import CISPO
from trimtab.trainer.losses.clipping import ClipRange
from trimtab.trainer.losses.dapo import DAPO
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

_UNBOUNDED: tuple[AlgorithmName, ...] = ("ppo", "rloo")


def correction_of(algorithm: Algorithm) -> Correction:
    """Unless the manifest says: a weight where nothing else bounds the distance to the policy that sampled. A clip
    around that policy does. Around the beginning of the step it would bound nothing, if there is one update a step.
    """
    if algorithm.correction is not None:
        return algorithm.correction
    return Correction() if algorithm.name in _UNBOUNDED else Correction(type="None")


def recipe_of(algorithm: Algorithm) -> Recipe:
    recipe = _RECIPES[algorithm.name]
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
