"""A job of `trimtab run` that a released version has trained: this version goes on with all that it has kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.audited_job import audited
from tests.support.quickstart_job import logged_steps, trainer_log
from tests.support.released.folders import released
from tests.support.released.trained import BATCH, NAME, POLICY, pulled, trimtab

_MORE = 3


@pytest.mark.slow
@pytest.mark.parametrize("source", released(), ids=lambda folder: folder.name)
def test_a_job_that_a_released_version_has_trained_goes_on(source: Path, tmp_path: Path) -> None:
    """Its ledger, rows, weights, checkpoint and keys: from the step it had got to, with the weights that it had."""
    facts = json.loads((source / "trained.json").read_text())
    steps = facts["steps"]
    shutil.copytree(source / "job", tmp_path, dirs_exist_ok=True)
    state, file = tmp_path / ".trimtab" / NAME, tmp_path / "job.yaml"
    trimtab("restore", source / "backup", "--state-folder", state)
    trimtab("weights", "verify", "--deep", "--state-folder", state)
    assert pulled(state, tmp_path / "pulled", model=tmp_path / "model", version=steps) == facts["weights"]

    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["maxSteps"] = steps + _MORE
    file.write_text(yaml.safe_dump(manifest))
    trimtab("run", file)
    (resumed,) = (line for line in trainer_log(file) if line["event"] == "resumed")
    assert resumed["step"] == steps
    assert [line["step"] for line in logged_steps(file)] == list(range(steps, steps + _MORE))
    report = audited(state, file)
    assert report.violations == []
    assert report.steps == {POLICY: steps + _MORE}
    assert report.trained == {POLICY: BATCH * (steps + _MORE)}
