"""What of a job may be changed while it runs, and what is refused by its name, as the API server does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dataflow.jobs import job
from trimtab.api.live_settings import changes
from trimtab.api.transition import transition_problems

PROMPTS = [{"name": "p", "jsonl": {"uri": "p.jsonl"}}]


def changed(policies: int = 2, **data: Any) -> Any:
    return job(policies=policies, data={"prompts": PROMPTS, "groupSize": 4, "batchSize": 32} | data)


BEFORE = changed()


def with_rate(policy: int, rate: float) -> Any:
    after = changed().model_dump(mode="json", by_alias=True, exclude_none=True)
    after["spec"]["policies"][policy]["algorithm"]["optimizer"]["learningRate"] = rate
    return type(BEFORE).model_validate(after)


def test_what_may_be_changed_is_told_by_its_field() -> None:
    after = changed(maxStaleness=3, batchSize=64)
    assert transition_problems(BEFORE, after) == []
    was = BEFORE.spec.data.max_staleness
    assert changes(BEFORE.spec.live_settings, after.spec.live_settings) == (
        f"data.maxStaleness {was} → 3",
        "batchSize of policies[solver] 32 → 64",
        "batchSize of policies[judge] 32 → 64",
    )
    slower = with_rate(1, 2.5e-7)
    assert transition_problems(BEFORE, slower) == []
    (said,) = changes(BEFORE.spec.live_settings, slower.spec.live_settings)
    assert said.startswith("policies[judge].algorithm.optimizer.learningRate ")
    assert said.endswith(" → 2.5e-07")
    assert changes(BEFORE.spec.live_settings, BEFORE.spec.live_settings) == ()


@pytest.mark.parametrize(
    ("after", "field", "why"),
    [
        (changed(groupSize=8), "spec.data.groupSize", "groups in flight would break"),
        (changed(seed=7), "spec.data.seed", "the order of prompts already served"),
        (changed(1), "spec.policies", "neither added, removed nor renamed"),
    ],
    ids=["group size", "seed", "policies"],
)
def test_what_may_not_be_changed_is_refused_by_name(after: Any, field: str, why: str) -> None:
    (problem,) = transition_problems(BEFORE, after)
    assert problem.field == field
    assert why in problem.message


def test_a_model_and_what_is_inside_lists_too() -> None:
    after = changed().model_dump(mode="json", by_alias=True, exclude_none=True)
    after["spec"]["policies"][1]["model"]["uri"] = "another"
    (problem,) = transition_problems(BEFORE, type(BEFORE).model_validate(after))
    assert problem.field == "spec.policies[1].model"
