"""A job of `trimtab run` with a model of a few hundred numbers: its backup has everything that a job keeps."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import load_file

from examples import tiny_model
from examples.largest_digit import largest_digit, write_rows
from examples.quickstart.make import CHARACTERS, make_tokenizer

NAME = "released"
POLICY = "solver"
STEPS = 4
BATCH = 16


def write(folder: Path) -> None:
    """Train the job, and keep its backup beside its files."""
    job = folder / "job"
    make_tokenizer(job / "model")
    tiny_model.make_model(job / "model", characters=CHARACTERS, width=16, layers=1, seed=0)
    write_rows(largest_digit(digits=2, seed=0), job / "prompts.jsonl")
    (job / "job.yaml").write_text(yaml.safe_dump(_manifest(), sort_keys=False))
    state = job / ".trimtab" / NAME
    trimtab("run", job / "job.yaml")
    trimtab("backup", NAME, folder / "backup", "--state-folder", state, "--plain-keys")
    facts = {"steps": STEPS, "weights": pulled(state, job / ".trimtab" / "pulled", model=job / "model", version=STEPS)}
    (folder / "trained.json").write_text(json.dumps(facts, indent=1) + "\n")


def trimtab(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "trimtab.cli.main", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pulled(state: Path, target: Path, *, model: Path, version: int) -> dict[str, str]:
    """By tensor, the SHA-256 of what a version of the policy has."""
    trimtab("weights", "pull", target, "--version", str(version), "--state-folder", state, "--model", model)
    tensors = load_file(target / "model.safetensors")
    return {
        name: hashlib.sha256(tensor.float().numpy().tobytes()).hexdigest() for name, tensor in sorted(tensors.items())
    }


def _manifest() -> dict[str, Any]:
    return {
        "apiVersion": "rl.trimtab.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": NAME},
        "spec": {
            "maxSteps": STEPS,
            "workflow": {"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"},
            "data": {
                "prompts": [{"name": "train", "jsonl": {"uri": "prompts.jsonl"}}],
                "groupSize": 4,
                "batchSize": BATCH,
                "maxStaleness": 2,
            },
            "evaluation": {
                "everySteps": 2,
                "benchmarks": [
                    {"name": "held-out", "jsonl": {"uri": "prompts.jsonl"}, "limit": 4, "sampling": {"maxTokens": 1}}
                ],
            },
            "policies": [
                {
                    "name": POLICY,
                    "model": {"uri": "model"},
                    "algorithm": {"name": "grpo", "optimizer": {"learningRate": 1.0e-3}},
                    "sampling": {"maxTokens": 1},
                    "trainer": {"gradientCheckpointing": False, "checkpoint": {"everySteps": 2, "keep": 2}},
                }
            ],
            "pools": [{"name": "local", "replicas": 1, "gracePeriodSeconds": 20, "engine": {"name": "builtin"}}],
            "autoscaling": {"windowSteps": 2},
        },
    }
