"""A whole job with stages: a reference scores rows on an engine of its own pool, code of the user's rewards them and
computes a column of its own, and the trainer learns from what both said.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.quickstart_job import logged_steps, make_quickstart, run_to_its_end, trained_steps
from tests.support.rollout import staged_code

pytestmark = pytest.mark.slow

_STEPS = 3
_BATCH = 32


def test_columns_of_stages_arrive_at_the_trainer(tmp_path: Path) -> None:
    shutil.copy(staged_code.__file__, tmp_path / "own_code.py")
    file = make_quickstart(tmp_path, name="staged", max_steps=_STEPS, batchSize=_BATCH)
    seen = tmp_path / "seen.jsonl"
    manifest = yaml.safe_load(file.read_text())
    spec = manifest["spec"]
    (solver,) = spec["policies"]
    solver["sampling"] = {"maxTokens": 4, "temperature": 0.9}
    solver["algorithm"] = {"name": "custom", "custom": {"entrypoint": "own_code:Witness", "args": {"file": str(seen)}}}
    reference = {"name": "reference", "frozen": True, "model": {"uri": "model"}, "sampling": {"temperature": 0.9}}
    spec["policies"] = [solver, reference]
    spec["workflow"]["source"] = {"path": "."}
    spec["workflow"]["roles"] = [{"name": "solver", "policy": "solver"}]
    spec["pools"].append({**spec["pools"][0], "name": "scorers", "rollouts": False})
    doubled = {"entrypoint": "own_code:Doubled", "args": {"stage": "reference"}}
    spec["stages"] = [
        {"name": "reference", "computes": "Logprobs", "policy": "reference", "pool": "scorers"},
        {"name": "strict", "computes": "Reward", "plugin": {"entrypoint": "own_code:Strict"}, "per": "Row"},
        {"name": "doubled", "computes": "Custom", "plugin": doubled, "needs": ["reference", "strict"]},
    ]
    file.write_text(yaml.safe_dump(manifest))
    steps = trained_steps(file)
    assert len(steps) == _STEPS
    # Before the first step the recipe is tried on numbers that are made up, the same for each stage.
    noted = [json.loads(line) for line in seen.read_text().splitlines()]
    rows = [row for row in noted if row["doubled"] != row["reference"]]
    assert len(rows) >= _STEPS * _BATCH
    for row in rows:
        assert len(row["reference"]) == len(row["sampled"])
        assert row["doubled"] == pytest.approx([2 * number + row["reward"] for number in row["reference"]], abs=1e-5)
    # A row of the first weights has the reference's own logprobs: both models are the same then.
    same = [row for row in rows if row["reference"] == pytest.approx(row["sampled"], abs=1e-4)]
    assert len(same) >= _BATCH
    rewards = {row["reward"] for row in rows}
    assert min(rewards) == -1.0, "random weights do not only say digits"
    assert max(rewards) >= 0.0


def test_a_critic_values_the_rows_that_it_learns_from(tmp_path: Path) -> None:
    """It begins with the language model and no value head; what it publishes is served where the stage asks it."""
    file = make_quickstart(tmp_path, name="valued", max_steps=_STEPS, batchSize=_BATCH)
    manifest = yaml.safe_load(file.read_text())
    spec = manifest["spec"]
    (actor,) = spec["policies"]
    expected = {"stage": "values", "discount": 1.0, "lambda": 0.95}
    actor |= {"name": "actor", "algorithm": {"name": "ppo", "critic": expected}}
    critic = {**actor, "name": "critic", "algorithm": {"name": "critic", "critic": expected}}
    spec["policies"] = [actor, critic]
    spec["workflow"]["roles"] = [{"name": "actor", "policy": "actor"}]
    spec["data"]["mix"] = [{"policy": "critic", "streams": [{"policy": "actor"}]}]
    spec["stages"] = [{"name": "values", "computes": "Values", "policy": "critic"}]
    file.write_text(yaml.safe_dump(manifest))
    run_to_its_end(file)
    assert [len(logged_steps(file, policy=policy)) for policy in ("actor", "critic")] == [_STEPS, _STEPS]
    (worker,) = (tmp_path / ".trimtab" / "valued" / "logs").glob("*.worker.log")
    told = [json.loads(line) for line in worker.read_text().splitlines() if line.startswith("{")]
    swapped = [line for line in told if line["event"] == "weights_swapped" and line["policy"] == "critic"]
    assert max(line["version"] for line in swapped) >= 1, "no values but those of a head that is zero"
