"""Algorithms of the user's own: found where the workflow's code is, laid over by the manifest, and tried before use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trimtab.api.policy import Policy
from trimtab.fabric.pod import JobMisconfigured
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.losses.clipping import ClipRange
from trimtab.trainer.losses.recipe import RatioTo
from trimtab.trainer.losses.registry import RecipeMissing, recipe_of
from trimtab.trainer.recipes import policy_recipe

OWN = "tests.support.trainer.own_algorithm"


def policy(entrypoint: str, args: dict[str, Any] | None = None, **algorithm: Any) -> Policy:
    custom = {"entrypoint": entrypoint, "args": args or {}}
    return Policy.model_validate(
        {"name": "solver", "model": {"uri": "m"}, "algorithm": {"name": "custom", "custom": custom, **algorithm}}
    )


def test_the_manifest_is_laid_over_a_recipe_of_ones_own_as_over_ours() -> None:
    recipe = policy_recipe(policy(f"{OWN}:Tapered", {"taper": 0.5}), folder=None)
    assert recipe.ratio_to is RatioTo.SAMPLED
    corrected = policy(f"{OWN}:Tapered", correction={"type": "Truncate"}, clip={"low": 0.1, "high": 0.3})
    recipe = policy_recipe(corrected, folder=None)
    assert recipe.ratio_to is RatioTo.STEP_BEGIN
    assert recipe.clip == ClipRange(low=0.1, high=0.3)


def test_rows_are_asked_for_the_columns_that_it_needs() -> None:
    own = policy(f"{OWN}:Surprised", kl={"coefficient": 0.1, "stage": "reference"})
    rule = AdvantageRule.of(own, policy_recipe(own, folder=None))
    assert rule.columns == ("logprobs", "reference")


def test_the_code_beside_the_workflow_comes_first(tmp_path: Path) -> None:
    (tmp_path / "own_algorithm_in_a_folder.py").write_text(
        "from tests.support.trainer.own_algorithm import Tapered\n\n\nclass Mine(Tapered):\n    pass\n"
    )
    assert policy_recipe(policy("own_algorithm_in_a_folder:Mine"), folder=tmp_path).columns == ()


@pytest.mark.parametrize(
    ("entrypoint", "args", "told"),
    [
        ("nowhere.to.be.found:Mine", {}, r"algorithm\.custom\.entrypoint 'nowhere.to.be.found:Mine' cannot be loaded"),
        (f"{OWN}:Nobody", {}, r"algorithm\.custom\.entrypoint .* cannot be loaded"),
        (f"{OWN}:Tapered", {"tapre": 1}, r"algorithm\.custom\.args do not fit"),
        (f"{OWN}:WithoutRecipe", {}, r"algorithm\.custom\.entrypoint .* has no `def recipe\(self\) -> Recipe`"),
        (f"{OWN}:NotARecipe", {}, r"algorithm\.custom: recipe\(\) of .* returned dict"),
        (f"{OWN}:Raising", {}, r"algorithm\.custom: recipe\(\) of .* failed: RuntimeError\('no such thing'\)"),
        (f"{OWN}:Unlearnable", {}, r"algorithm\.custom: the loss has no gradient"),
        (
            f"{OWN}:Summed",
            {},
            r"algorithm\.custom: token_losses must give one loss for each of 8 tokens.* gave \[\]",
        ),
        (f"{OWN}:Infinite", {}, r"algorithm\.custom: the loss or its gradient is not finite"),
        (f"{OWN}:Averaged", {}, r"algorithm\.custom: losses of micro-batches must add up"),
        (f"{OWN}:OneAdvantage", {}, r"algorithm\.custom: advantages must be 3 finite numbers"),
        (f"{OWN}:Valued", {}, r"algorithm\.custom: value_head is for algorithm critic"),
        (f"{OWN}:Tapered", {"taper": "much"}, r"algorithm\.custom: the recipe failed on made-up answers"),
    ],
)
def test_one_that_cannot_train_is_refused_by_its_field(entrypoint: str, args: dict[str, Any], told: str) -> None:
    with pytest.raises(JobMisconfigured, match=r"policies\[solver\]\." + told):
        policy_recipe(policy(entrypoint, args), folder=None)


def test_ours_do_not_stand_in_for_one_that_was_not_loaded() -> None:
    with pytest.raises(RecipeMissing, match="custom"):
        recipe_of(policy(f"{OWN}:Tapered").algorithm)
