"""The quickstart's manifest with files that are enough to be looked at, for tests in which no model is made or run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer, models

from examples.largest_digit import largest_digit, write_rows

_QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


def write_quickstart(folder: Path, **workflow: Any) -> Path:
    """The manifest's path. `workflow` overrides fields of spec.workflow."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    Tokenizer(models.WordLevel({"?": 0}, unk_token="?")).save(str(model / "tokenizer.json"))
    (model / "model.safetensors").touch()
    rows = largest_digit(digits=3, seed=0)
    write_rows(rows[:5], folder / "held_out.jsonl")
    write_rows(rows[5:], folder / "prompts.jsonl")
    shutil.copy(_QUICKSTART / "slow_tool.py", folder)
    manifest = yaml.safe_load((_QUICKSTART / "job.yaml").read_text())
    manifest["spec"]["workflow"] |= workflow
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return path
