"""A pool that cannot serve every role is refused by name, with the same words wherever it is met."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api.manifests import changed, job, pool
from trimtab.api.coverage import cannot_serve
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.review import review
from trimtab.api.validation import parse, problems
from trimtab.operator.admission.judgement import judge
from trimtab.operator.plan.pool import plan_pool

WORDS = (
    "pool spot has no engine for policy verifier: an episode has all its roles, and a stage its policy, in one pod, so "
    "add the policy to the engines of the pool"
)
UNCOVERED = {"engines": [{"policy": "solver", "replicas": 3}]}
FROZEN = {"spec.policies.1": {"name": "verifier", "frozen": True}}
ASKED = {"policy": "verifier", "endpoint": {"name": "anthropic", "url": "https://llm", "model": "m"}}


def working_for(**spec: Any) -> dict[str, Any]:
    return changed(pool("spot"), {f"spec.{field}": value for field, value in spec.items()})


def parsed(changes: dict[str, Any]) -> RLJob:
    made = parse(changed(job(), changes))
    assert isinstance(made, RLJob)
    return made


def test_validate_and_admission_say_which_pool_lacks_which_policy() -> None:
    manifest = changed(job(), {"spec.pools.1": {"name": "spot", **UNCOVERED}})
    (problem,) = problems(manifest)
    assert (problem.field, problem.message) == ("spec.pools", WORDS)
    assert judge(manifest, old=None, job=None).refusal == f"spec.pools: {WORDS}"


def test_a_pool_made_by_hand_is_refused_in_the_same_words() -> None:
    by_hand, of = working_for(**UNCOVERED), parsed({})
    assert judge(by_hand, old=None, job=of).refusal == f"spec.engines: {WORDS}"
    assert judge(by_hand, old=None, job=None).refusal is None, "it may be made before its job"
    typed = parse(by_hand)
    assert isinstance(typed, RolloutPool)
    planned = plan_pool(of, typed, [], now=0.0)
    assert planned.actions == ()
    ready = next(one for one in planned.status.conditions if one.type == "Ready")
    assert (ready.reason, ready.message) == ("RolesNotServed", WORDS)


@pytest.mark.parametrize(
    ("changes", "engines", "expected"),
    [
        ({}, [], None),
        ({}, [{"policy": "solver"}, {"policy": "verifier"}], None),
        ({}, [{"policy": "solver"}, {"policy": "verifier"}, {"policy": "critic"}], "must name policies of this job"),
        ({}, [{"policy": "solver"}, ASKED], "endpoint is for frozen policies"),
        ({"spec.policies.1.frozen": True}, [{"policy": "solver"}, ASKED], None),
        ({"spec.policies.1.frozen": True}, [], None),
    ],
)
def test_a_pool_by_hand_is_judged_as_a_pool_of_the_job(
    changes: dict[str, Any], engines: list[dict[str, Any]], expected: str | None
) -> None:
    typed = parse(working_for(engines=engines))
    assert isinstance(typed, RolloutPool)
    why = cannot_serve(parsed(changes).spec, typed.spec, name="spot")
    in_the_job = problems(changed(job(), {**changes, "spec.pools.1": {"name": "spot", "engines": engines}}))
    assert (why or "") == "".join(problem.message for problem in in_the_job)
    assert (why is None) if expected is None else (expected in (why or ""))


def test_a_frozen_policy_without_a_model_needs_an_endpoint_in_every_pool() -> None:
    engines = [{"policy": "solver"}, ASKED]
    of = parsed({**FROZEN, "spec.pools": [{"name": "home", "engines": engines}]})
    typed = parse(working_for())
    assert isinstance(typed, RolloutPool)
    assert "policies[].model is required" in (cannot_serve(of.spec, typed.spec, name="spot") or "")


STAGES = {
    "spec.workflow.roles": [{"name": "solver", "policy": "solver"}],
    "spec.policies.1.frozen": True,
    "spec.stages": [{"name": "own", "computes": "Logprobs", "policy": "verifier"}],
}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"engines": [{"policy": "solver"}, {"policy": "verifier"}]}, None),
        ({"engines": [{"policy": "solver"}]}, "pool spot has no engine for policy verifier"),
        ({"engines": [{"policy": "solver"}, ASKED]}, "stages that compute Logprobs need engine builtin or sglang"),
        ({"rollouts": False}, "pools[].rollouts must be true unless a stage names the pool"),
    ],
)
def test_a_pool_by_hand_runs_the_stages_that_name_no_pool(settings: dict[str, Any], expected: str | None) -> None:
    typed = parse(working_for(**settings))
    assert isinstance(typed, RolloutPool)
    why = cannot_serve(parsed(STAGES).spec, typed.spec, name="spot")
    in_the_job = problems(changed(job(), {**STAGES, "spec.pools.1": {"name": "spot", **settings}}))
    assert (why or "") == "".join(problem.message for problem in in_the_job)
    assert (why is None) if expected is None else (expected in (why or ""))


def test_a_stage_with_a_pool_of_its_own_asks_nothing_of_the_others() -> None:
    stages = changed(job(), {**STAGES, "spec.stages.0.pool": "home", "spec.pools.1": {"name": "spot", **UNCOVERED}})
    assert problems(stages) == []


def test_what_a_frozen_policy_does_not_use_is_said() -> None:
    changes = {"spec.policies.1.frozen": True, "spec.policies.1.trainer.replicas": 2}
    assert review(changed(job(), changes)).warnings == (
        "spec.policies[1].trainer: has no effect on a frozen policy, which does not learn",
    )
    assert review(changed(job(), {"spec.policies.1.frozen": True})).warnings == ()
    greedy = {"spec.policies.1.frozen": True, "spec.policies.1.sampling.temperature": 0}
    assert review(changed(job(), greedy)).problems == (), "only samples that are compared must differ"
