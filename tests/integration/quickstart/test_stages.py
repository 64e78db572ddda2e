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
from tests.support.staged_job import check_columns, with_stages

pytestmark = pytest.mark.slow

_STEPS = 3
_BATCH = 32


def test_columns_of_stages_arrive_at_the_trainer(tmp_path: Path) -> None:
    shutil.copy(staged_code.__file__, tmp_path / "own_code.py")
    file = make_quickstart(tmp_path, name="staged", max_steps=_STEPS, batchSize=_BATCH)
    seen = tmp_path / "seen.jsonl"
    manifest = yaml.safe_load(file.read_text())
    with_stages(manifest, code=".", seen=str(seen))
    file.write_text(yaml.safe_dump(manifest))
    assert len(trained_steps(file)) == _STEPS
    check_columns([json.loads(line) for line in seen.read_text().splitlines()], steps=_STEPS, batch=_BATCH)


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
