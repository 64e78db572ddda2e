"""Whole jobs of several models: PPO with a critic that learns beside it and a reference on engines, and a student."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.quickstart_job import logged_steps, make_quickstart, run_to_its_end, trainer_log

pytestmark = pytest.mark.slow

_STEPS = 6
_CRITIC = {"stage": "values", "lambda": 0.95}


def written(tmp_path: Path, name: str, **spec: Any) -> Path:
    """A quickstart of which parts are others."""
    file = make_quickstart(tmp_path, name=name, max_steps=_STEPS, batchSize=32, groupSize=4)
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["workflow"]["roles"] = [{"name": "solver", "policy": "solver"}]
    manifest["spec"]["data"] |= spec.pop("data", {})
    manifest["spec"] |= spec
    file.write_text(yaml.safe_dump(manifest))
    return file


def check_nothing_was_set_aside(file: Path, policy: str) -> None:
    assert not [line for line in trainer_log(file, policy=policy) if line["event"] == "row_set_aside"]


def policy(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "model": {"uri": "model"}, "sampling": {"maxTokens": 4}, **fields}


def test_a_policy_and_its_critic_learn_from_the_same_rows(tmp_path: Path) -> None:
    kl = {"coefficient": 0.05, "stage": "reference"}
    rate = {"optimizer": {"learningRate": 1e-3}}
    file = written(
        tmp_path,
        "two-models",
        policies=[
            policy("solver", algorithm={"name": "ppo", "critic": _CRITIC, "kl": kl, **rate}),
            policy("critic", algorithm={"name": "critic", "critic": _CRITIC, **rate}),
            policy("reference", frozen=True),
        ],
        data={"mix": [{"policy": "critic", "streams": [{"policy": "solver"}]}]},
        stages=[
            {"name": "reference", "computes": "Logprobs", "policy": "reference"},
            {"name": "values", "computes": "Values", "policy": "critic"},
        ],
    )
    run_to_its_end(file)
    actor, critic = (logged_steps(file, policy=name) for name in ("solver", "critic"))
    assert len(actor) == len(critic) == _STEPS
    for name in ("solver", "critic"):
        check_nothing_was_set_aside(file, name)
    # The first rows are of the reference's own weights, and are valued at nothing.
    assert actor[0]["reference_kl"] == pytest.approx(0.0, abs=1e-5)
    assert actor[-1]["reference_kl"] > 0.0
    assert actor[-1]["value_error"] is None
    assert critic[0]["values_staleness"] == 0.0
    assert critic[-1]["values_staleness"] <= 9.0
    assert critic[-1]["value_error"] != critic[0]["value_error"]
    assert critic[-1]["logprob_mismatch"] is None


def test_a_student_learns_from_a_teacher_on_an_engine(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "student",
        policies=[
            policy(
                "solver",
                algorithm={
                    "name": "distill",
                    "distill": {"stage": "teacher"},
                    "optimizer": {"learningRate": 1e-3},
                },
            ),
            policy("teacher", frozen=True),
        ],
        stages=[{"name": "teacher", "computes": "Logprobs", "policy": "teacher"}],
    )
    run_to_its_end(file)
    steps = logged_steps(file, policy="solver")
    assert len(steps) == _STEPS
    check_nothing_was_set_aside(file, "solver")
    # Student and teacher are the same model: there is nothing to learn, and next to nothing changes.
    assert abs(steps[0]["loss"]) < 1e-4
    assert steps[0]["grad_norm"] < 1e-2
