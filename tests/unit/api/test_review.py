"""What `trimtab validate` and the webhook say beside the schema: what is not supported, and what surprises."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api.manifests import changed, job, pool
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.review import review, scale_warnings


def test_a_field_that_this_version_does_not_do_is_a_problem_at_its_place() -> None:
    reviewed = review(changed(job(), {"spec.policies.0.sampling": {"temperature": 0}}))
    assert [(problem.path, problem.field) for problem in reviewed.problems] == [
        (("spec", "policies", 0, "sampling", "temperature"), "spec.policies[0].sampling.temperature")
    ]


@pytest.mark.parametrize(
    ("changes", "warnings"),
    [
        ({}, []),
        ({"spec.data.maxStaleness": 0}, ["spec.data.maxStaleness: 0 makes training synchronous"]),
        (
            {"spec.data.maxStaleness": 3, "spec.policies.0.trainer": {"publish": {"everySteps": 4}}},
            ["give 5 or more to let both work"],
        ),
        ({"spec.data.maxStaleness": 4, "spec.policies.0.trainer": {"publish": {"everySteps": 4}}}, []),
        ({"spec.autoscaling": {"scaleDown": {"paused": True}}}, ["spec.autoscaling.scaleDown: has no effect"]),
        ({"spec.autoscaling": {"mode": "DryRun", "scaleDown": {"paused": True}}}, []),
        (
            {
                "spec.autoscaling": {
                    "maintainer": {
                        "type": "Agent",
                        "agent": {"model": "m", "apiKeySecret": {"name": "s", "key": "k"}},
                    }
                }
            },
            ["spec.autoscaling.maintainer.agent: is not asked"],
        ),
    ],
)
def test_what_is_legal_and_surprising_is_warned_of(changes: dict[str, Any], warnings: list[str]) -> None:
    reviewed = review(changed(job(), changes))
    assert not reviewed.problems
    assert len(reviewed.warnings) == len(warnings)
    for said, expected in zip(reviewed.warnings, warnings, strict=True):
        assert expected in said


def bounded(**spec: Any) -> RolloutPool:
    return RolloutPool.model_validate(changed(pool(), {f"spec.{name}": value for name, value in spec.items()}))


def test_a_scale_that_does_not_last_is_warned_of() -> None:
    auto = RLJob.model_validate(changed(job("j"), {"spec.autoscaling": {"mode": "Auto", "maxReplicas": 8}}))
    (said,) = scale_warnings(bounded(), 3, auto)
    assert "the autoscaler of RLJob j sets it" in said
    assert "to keep 3, set spec.autoscaling.mode of RLJob j to DryRun or Off" in said
    assert scale_warnings(bounded(), 3, None) == []
    assert "brought back to 4" in scale_warnings(bounded(maxReplicas=4), 5, None)[0]
    assert "brought back to 2" in scale_warnings(bounded(minReplicas=2), 1, None)[0]
    assert scale_warnings(bounded(minReplicas=2, maxReplicas=4), 3, None) == []
