"""What a job that resumes another may not ask for, and what the other one must be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operator.scene import sleeping_job, tiny_job
from trimtab.api.job import RLJob, RLJobSpec
from trimtab.api.validation import parse
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.operator.reconcile.refusals import refusal_of
from trimtab.operator.resume_source import MOST_CHECKPOINTS, NoBestStep, ranked, refusal, unlike

KEY = f"{'A' * 43}="


def spec(manifest: dict[str, Any]) -> RLJobSpec:
    job = parse(manifest)
    assert isinstance(job, RLJob)
    return job.spec


@pytest.mark.parametrize(
    ("resume", "said"),
    [
        ({"checkpoint": "/kept", "publicKey": KEY, "step": "Best"}, "spec.resumeFrom.step: Best .* name the job"),
        ({"job": "source", "step": "Best"}, None),
        ({"checkpoint": "kept", "publicKey": KEY}, r"spec.resumeFrom.checkpoint \(kept\): relative"),
        ({"job": "source", "step": 3}, None),
        ({"checkpoint": "s3://kept/n/j", "publicKey": KEY}, None),
        ({"checkpoint": "/kept/n/j", "publicKey": KEY}, None),
    ],
)
def test_a_cluster_takes_what_its_pods_can_find(resume: dict[str, Any], said: str | None) -> None:
    manifest = tiny_job(resumeFrom=resume)
    manifest["spec"]["data"]["prompts"][0]["jsonl"]["uri"] = "/data/prompts.jsonl"
    why = refusal_of(spec(manifest))
    if said is None:
        assert why is None
    else:
        with pytest.raises(ValueError, match=said):
            raise ValueError(why)


def test_a_trainer_of_ones_own_reads_the_checkpoint_itself() -> None:
    own = sleeping_job()
    own["spec"]["resumeFrom"] = {"job": "source"}
    assert "the trainer of policies[solver] is one of your own" in str(refusal(spec(own)))
    del own["spec"]["resumeFrom"]
    assert refusal(spec(own)) is None


def test_the_other_job_trains_the_policy_and_keeps_its_checkpoints_itself() -> None:
    def asked(source: dict[str, Any], policy: str) -> str | None:
        return unlike(spec(source), [policy], name="source", namespace="team", public_key=KEY)

    assert asked(tiny_job("source"), "solver") is None
    assert "source trains no policy critic, but solver" in str(asked(tiny_job("source"), "critic"))
    elsewhere = tiny_job("source")
    elsewhere["spec"]["policies"][0]["trainer"] = {"checkpoint": {"uri": "s3://kept/"}}
    assert f"checkpoint: s3://kept/team/source and publicKey: {KEY}" in str(asked(elsewhere, "solver"))


def scored(version: int, score: float | None, *, benchmark: str = "held-out", policy: str = "p") -> EvaluationResult:
    return EvaluationResult(
        job="j", policy=policy, benchmark=benchmark, version=version, score=score, episodes=1, at=1.0
    )


def test_steps_are_ranked_by_the_scores_of_their_policy_and_of_equal_ones_the_newest_is_first() -> None:
    found = [scored(1, 0.9), scored(6, 0.7), scored(9, 0.7), scored(3, 0.8, policy="q"), scored(12, None)]
    assert ranked(found, policy="p") == (1, 9, 6)
    assert ranked(found, policy="q") == (3,)


def test_versions_older_than_any_checkpoint_that_can_be_kept_are_left_out() -> None:
    found = [scored(version, -float(version)) for version in range(MOST_CHECKPOINTS + 5)]
    steps = ranked(found, policy="p")
    assert len(steps) == MOST_CHECKPOINTS
    assert steps[0] == 5


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], r"spec\.resumeFrom\.step: no version of p was evaluated; wait"),
        ([scored(9, None)], "no version of p was evaluated"),
        ([scored(9, 0.5), scored(9, 0.1, benchmark="aime")], "on aime, held-out; give the number of a step"),
    ],
)
def test_where_the_best_cannot_be_known_it_is_said_what_to_do(found: list[EvaluationResult], said: str) -> None:
    with pytest.raises(NoBestStep, match=said):
        ranked(found, policy="p")
