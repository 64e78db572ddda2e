"""A whole job that trains adapters: pools load them beside the model, agree with the trainer on every token, and the
reward rises.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

from examples.streams import figures, read_streams
from tests.support.quickstart_job import make_quickstart, trained_steps
from trimtab.fabric.bus.topology import JobTopology
from trimtab.weights.adapters import said_in

pytestmark = pytest.mark.slow

_STEPS = 3
_LEARNING_STEPS = 30
_RANK = 16
_AGREED = 1e-4
"""Both compute in float32 what was published in bfloat16."""


def run_job(folder: Path, *, steps: int, **data: Any) -> list[dict[str, Any]]:
    """The steps that the trainer logged."""
    file = make_quickstart(folder, name="adapts", max_steps=steps, **data)
    manifest = yaml.safe_load(file.read_text())
    (policy,) = manifest["spec"]["policies"]
    policy["lora"] = {"rank": _RANK}
    policy["algorithm"] |= {"optimizer": {"learningRate": 4.0e-3}}
    file.write_text(yaml.safe_dump(manifest))
    found = trained_steps(file)
    assert len(found) == steps
    return found


def check_agreement(steps: list[dict[str, Any]]) -> None:
    mismatches = [step["logprob_mismatch"] for step in steps if step["logprob_mismatch"] is not None]
    assert mismatches, "no version's own samples came"
    assert max(mismatches) < _AGREED


def test_pools_serve_adapters_that_the_trainer_agrees_with(tmp_path: Path) -> None:
    check_agreement(run_job(tmp_path, steps=_STEPS, batchSize=64, maxStaleness=0))
    (copy,) = (tmp_path / ".trimtab" / "adapts" / "pods").glob("*/weights/solver/copy/model.safetensors")
    with safe_open(copy, framework="pt") as opened:
        adapter = said_in(opened.metadata())
    assert adapter is not None
    assert (adapter.rank, adapter.alpha, adapter.base) == (_RANK, 2.0 * _RANK, "model")
    served = load_file(copy)
    assert all(name.startswith("base_model.model.model.layers.") for name in served)
    assert any(tensor.any() for name, tensor in served.items() if "lora_B" in name), "no update reached the pool"


def test_a_policy_learns_with_adapters(tmp_path: Path) -> None:
    steps = run_job(tmp_path, steps=_LEARNING_STEPS)
    check_agreement(steps)
    state = tmp_path / ".trimtab" / "adapts"
    measured = figures(asyncio.run(read_streams(state, JobTopology("default", "adapts"))))
    assert measured["first_reward"] < 0.15
    assert measured["last_reward"] > 0.3
