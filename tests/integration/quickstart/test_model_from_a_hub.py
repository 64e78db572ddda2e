"""`trimtab run` with the model and the prompts by their hub names: what a researcher writes first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.hub_mirror import hub_mirror
from tests.support.quickstart_job import make_quickstart


def _run(file: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trimtab.cli.main", "run", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | environment)


def _by_hub_names(folder: Path) -> Path:
    file = make_quickstart(folder, name="hub", max_steps=2)
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["policies"][0]["model"]["uri"] = "hf://team/small@main"
    (prompts,) = manifest["spec"]["data"]["prompts"]
    prompts["jsonl"]["uri"] = "hf://datasets/team/sums@main/prompts.jsonl"
    file.write_text(yaml.safe_dump(manifest))
    return file


@pytest.mark.slow
def test_a_job_runs_from_hub_names_and_goes_on_without_the_hub(tmp_path: Path) -> None:
    file = _by_hub_names(tmp_path / "job")
    (tmp_path / "set").mkdir()
    (file.parent / "prompts.jsonl").rename(tmp_path / "set/prompts.jsonl")
    (file.parent / "model").rename(tmp_path / "model")
    environment = {"HF_HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"}
    with hub_mirror() as mirror:
        mirror.repositories = {"models/team/small": tmp_path / "model", "datasets/team/sums": tmp_path / "set"}
        ran = _run(file, environment | {"HF_ENDPOINT": mirror.url})
        assert ran.returncode == 0, ran.stderr
        assert "fetching hf://team/small@main" in ran.stderr
        assert mirror.sent["model.safetensors"] == 1
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["maxSteps"] = 4
    file.write_text(yaml.safe_dump(manifest))
    ran = _run(file, environment | {"HF_HUB_OFFLINE": "1"})
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_without_the_hub_and_without_the_model_nothing_is_started(tmp_path: Path) -> None:
    file = _by_hub_names(tmp_path)
    ran = _run(file, {"HF_HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert ran.returncode == 1
    assert "spec.policies[solver].model.uri: hf://team/small@main: is not whole in the cache" in ran.stderr
    assert "hf download team/small" in ran.stderr
    assert not (file.parent / ".trimtab/hub/nats").exists()
