"""A job whose rows pass a reference of a pool of its own, code that rewards them and code that computes a column."""

from __future__ import annotations

from typing import Any

import pytest


def with_stages(manifest: dict[str, Any], *, code: str, seen: str) -> None:
    """Own code lies in the folder `code`; what its recipe is given of every row it writes to the file `seen`."""
    spec = manifest["spec"]
    (solver,) = spec["policies"]
    solver["sampling"] = {"maxTokens": 4, "temperature": 0.9}
    solver["algorithm"] = {"name": "custom", "custom": {"entrypoint": "own_code:Witness", "args": {"file": seen}}}
    reference = {"name": "reference", "frozen": True, "model": solver["model"], "sampling": {"temperature": 0.9}}
    spec["policies"] = [solver, reference]
    spec["workflow"]["source"] = {"path": code}
    spec["workflow"]["roles"] = [{"name": "solver", "policy": "solver"}]
    spec["pools"].append({**spec["pools"][0], "name": "scorers", "rollouts": False})
    doubled = {"entrypoint": "own_code:Doubled", "args": {"stage": "reference"}}
    spec["stages"] = [
        {"name": "reference", "computes": "Logprobs", "policy": "reference", "pool": "scorers"},
        {"name": "strict", "computes": "Reward", "plugin": {"entrypoint": "own_code:Strict"}, "per": "Row"},
        {"name": "doubled", "computes": "Custom", "plugin": doubled, "needs": ["reference", "strict"]},
    ]


def check_columns(rows: list[dict[str, Any]], *, steps: int, batch: int) -> None:
    """What the recipe was given, by step: every column beside the row that it is of."""
    # Before the first step the recipe is tried on numbers that are made up, the same for each stage.
    rows = [row for row in rows if row["doubled"] != row["reference"]]
    assert len(rows) >= steps * batch
    for row in rows:
        assert len(row["reference"]) == len(row["sampled"])
        assert row["doubled"] == pytest.approx([2 * number + row["reward"] for number in row["reference"]], abs=1e-5)
    # A row of the first weights has the reference's own logprobs: both models are the same then.
    same = [row for row in rows if row["reference"] == pytest.approx(row["sampled"], abs=1e-4)]
    assert len(same) >= batch
    rewards = {row["reward"] for row in rows}
    assert min(rewards) == -1.0, "random weights do not only say digits"
    assert max(rewards) >= 0.0
