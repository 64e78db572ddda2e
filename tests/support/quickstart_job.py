"""The quickstart at test size: the same manifest with fewer steps, in a folder of the test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from examples.quickstart import make
from examples.quickstart.prompts import make_prompts

_QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


def make_quickstart(folder: Path, *, name: str, max_steps: int, whole: bool = False, **data: Any) -> Path:
    """Write model, prompts and manifest; returns the manifest's path. `data` overrides fields of spec.data.

    Unless it is to be whole, it has neither the slow tool nor what that calls for: one replica that answers at once is
    all that tests of something else need.
    """
    folder.mkdir(parents=True, exist_ok=True)
    make.make_tokenizer(folder / "model")
    make.make_model(folder / "model", seed=0)
    make_prompts(folder)
    shutil.copy(_QUICKSTART / "slow_tool.py", folder)
    job = yaml.safe_load((_QUICKSTART / "job.yaml").read_text())
    job["metadata"]["name"] = name
    job["spec"]["maxSteps"] = max_steps
    del job["spec"]["targetReward"]
    if not whole:
        job["spec"]["workflow"] = {"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"}
        del job["spec"]["evaluation"], job["spec"]["autoscaling"]
    job["spec"]["data"] |= data
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def trained_steps(file: Path, *, timeout_s: float = 600.0) -> list[dict[str, Any]]:
    """Run the job with `trimtab run` to its end; the steps that its trainer logged."""
    run_to_its_end(file, timeout_s=timeout_s)
    return logged_steps(file)


def run_to_its_end(file: Path, *, timeout_s: float = 600.0) -> None:
    """The job, with `trimtab run`."""
    command = [sys.executable, "-m", "trimtab.cli.main", "run", str(file)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert completed.returncode == 0, completed.stderr


def logged_steps(file: Path, *, policy: str = "") -> list[dict[str, Any]]:
    """Of a job that has run beside its manifest, by its one trainer or that of the policy."""
    return [line for line in trainer_log(file, policy=policy) if line["event"] == "step"]


def trainer_log(file: Path, *, policy: str = "") -> list[dict[str, Any]]:
    name = yaml.safe_load(file.read_text())["metadata"]["name"]
    (log,) = (file.parent / ".trimtab" / name / "logs").glob(f"*-{policy}*.trainer.log")
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
