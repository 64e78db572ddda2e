"""What a job that resumes another may not ask for, and what the other one must be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operator.scene import sleeping_job, tiny_job
from trimtab.api.job import RLJob, RLJobSpec
from trimtab.api.validation import parse
from trimtab.operator.reconcile.refusals import refusal_of
from trimtab.operator.resume_source import refusal, unlike

KEY = f"{'A' * 43}="


def spec(manifest: dict[str, Any]) -> RLJobSpec:
    job = parse(manifest)
    assert isinstance(job, RLJob)
    return job.spec


@pytest.mark.parametrize(
    ("resume", "said"),
    [
        ({"job": "source", "step": "Best"}, "spec.resumeFrom.step: Best .* `trimtab evaluation JOB`"),
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
