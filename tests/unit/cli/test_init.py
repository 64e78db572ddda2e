"""`trimtab init` writes jobs that are valid, and tests that pass as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from trimtab.cli.init import init
from trimtab.cli.init.rows import ROWS
from trimtab.cli.preflight import problems
from trimtab.cli.validate import validate
from trimtab.fabric.pod import read_job


def written(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(init, [*arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize("template", sorted(ROWS))
def test_what_is_written_is_valid_and_lacks_the_model_alone(template: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    said = written(template, str(folder))
    assert f"trimtab run {folder / 'job.yaml'}" in said.output
    checked = CliRunner().invoke(validate, [str(folder / "job.yaml")])
    assert checked.exit_code == 0, checked.output
    assert "warning" not in checked.output
    job = read_job(folder / "job.yaml")
    assert job.metadata.name == "mine"
    lacking = problems(job, folder)
    assert lacking
    assert all(f"{folder / 'model'} does not exist" in one for one in lacking), lacking


@pytest.mark.slow
@pytest.mark.parametrize("template", sorted(ROWS))
def test_the_tests_that_are_written_pass(template: str, tmp_path: Path) -> None:
    written(template, str(tmp_path / template))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), template]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_model_with_any_name_is_one_text_in_the_manifest(tmp_path: Path) -> None:
    model = 'models/it\'s:{a}"model"#$name'
    written("single-turn", str(tmp_path), "--name", "sums", "--model", model)
    job = read_job(tmp_path / "job.yaml")
    assert job.spec.policies[0].model is not None
    assert (job.metadata.name, job.spec.policies[0].model.uri) == ("sums", model)


def test_nothing_is_written_over_and_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("mine")
    said = written("single-turn", str(tmp_path), "--name", "sums", code=1)
    assert "train.jsonl is there already" in said.output
    assert [file.name for file in tmp_path.iterdir()] == ["train.jsonl"]
    assert "is no name of a job" in written("search", str(tmp_path / "My Job"), code=2).output
