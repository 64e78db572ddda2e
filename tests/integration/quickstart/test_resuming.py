"""A new job that begins at a checkpoint of another: its version 0 is that checkpoint, for trainer and engines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from examples import tiny_model
from examples.quickstart.make import CHARACTERS, make_tokenizer
from tests.support.quickstart_job import logged_steps, make_quickstart, run_to_its_end, trainer_log


def trimtab(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trimtab.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def successor(file: Path, name: str, **resume: Any) -> Path:
    """Another job beside the first, with its prompts and model."""
    manifest = yaml.safe_load(file.read_text())
    manifest["metadata"]["name"] = name
    manifest["spec"] |= {"maxSteps": 2, "resumeFrom": resume}
    made = file.with_name(f"{name}.yaml")
    made.write_text(yaml.safe_dump(manifest))
    return made


def weights(folder: Path, job: str, version: int, target: Path) -> dict[str, Any]:
    pulled = trimtab("weights", "pull", target, "--version", str(version), "--state-folder", folder / ".trimtab" / job)
    assert pulled.returncode == 0, pulled.stderr
    return load_file(target / "model.safetensors")


@pytest.mark.slow
def test_a_new_job_begins_where_another_has_got_to(tmp_path: Path) -> None:
    first = make_quickstart(tmp_path, name="first", max_steps=4)
    manifest = yaml.safe_load(first.read_text())
    manifest["spec"]["policies"][0]["trainer"]["checkpoint"] = {"everySteps": 2, "keep": 2}
    manifest["spec"]["evaluation"] = {
        "everySteps": 2,
        "benchmarks": [
            {"name": "held-out", "jsonl": {"uri": "held_out.jsonl"}, "limit": 16, "sampling": {"maxTokens": 1}}
        ],
    }
    first.write_text(yaml.safe_dump(manifest))
    for name, said in (
        ("orphan", "spec.resumeFrom.job: "),
        ("itself", "spec.resumeFrom.job: itself is this job itself"),
    ):
        refused = trimtab("run", successor(first, name, job="first" if name == "orphan" else name))
        assert refused.returncode == 1
        assert said in refused.stderr, refused.stderr
        assert not (tmp_path / ".trimtab" / name / "nats").exists()
    run_to_its_end(first)

    gone = trimtab("run", successor(first, "too-far", job="first", step=3))
    assert gone.returncode == 1
    assert "there is no checkpoint of step 3; there are those of 4, 2" in gone.stderr, gone.stderr

    second = successor(first, "second", job="first", step=2, optimizer=True)
    run_to_its_end(second)
    assert [step["step"] for step in logged_steps(second)] == [0, 1]
    (begun,) = (line for line in trainer_log(second) if line["event"] == "begun_elsewhere")
    assert begun["step"] == 2
    # What the engines sampled with from the first token on: a model of their own would be far off.
    assert logged_steps(second)[0]["logprob_mismatch"] < 1e-3
    old = weights(tmp_path, "first", 2, tmp_path / "old")
    new = weights(tmp_path, "second", 0, tmp_path / "new")
    assert old.keys() == new.keys()
    assert all(bool((old[name] == new[name]).all()) for name in old)
    # Whoever changes the source afterwards is told that it is too late.
    changed = yaml.safe_load(second.read_text())
    changed["spec"]["resumeFrom"]["step"] = 4
    second.write_text(yaml.safe_dump(changed))
    late = trimtab("run", second)
    assert late.returncode == 1
    assert "spec.resumeFrom: is not what this job has begun with" in late.stderr

    best = successor(first, "third", job="first", step="Best")
    run_to_its_end(best)
    (begun,) = (line for line in trainer_log(best) if line["event"] == "begun_elsewhere")
    assert begun["step"] in (2, 4)
    # The copy is gone with the first step, and is not missed: the job goes on from its own checkpoints.
    assert not (tmp_path / ".trimtab/third/resume").exists()
    further = yaml.safe_load(best.read_text())
    further["spec"]["maxSteps"] = 3
    best.write_text(yaml.safe_dump(further))
    run_to_its_end(best)
    assert [step["step"] for step in logged_steps(best)][-1] == 2
    assert sum(line["event"] == "begun_elsewhere" for line in trainer_log(best)) <= 1

    # A model of another shape.
    third = successor(first, "fourth", job="first")
    manifest = yaml.safe_load(third.read_text())
    manifest["spec"]["policies"][0]["model"]["uri"] = "deeper"
    make_tokenizer(tmp_path / "deeper")
    tiny_model.make_model(tmp_path / "deeper", characters=CHARACTERS, width=128, layers=5, seed=0)
    third.write_text(yaml.safe_dump(manifest))
    failed = trimtab("run", third)
    assert failed.returncode == 1
    assert "spec.resumeFrom: the checkpoint has no fitting" in failed.stderr, failed.stderr
    assert "policies[solver]" in failed.stderr
