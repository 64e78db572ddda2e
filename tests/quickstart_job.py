"""The quickstart at test size: the same manifest with fewer steps, in a folder of the test's own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import yaml

_QUICKSTART = Path(__file__).parent.parent / "examples" / "quickstart"


def make_quickstart(folder: Path, *, name: str, max_steps: int, **data: Any) -> Path:
    """Write model, prompts and manifest; returns the manifest's path. `data` overrides fields of spec.data."""
    spec = importlib.util.spec_from_file_location("quickstart_make", _QUICKSTART / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    folder.mkdir(parents=True, exist_ok=True)
    make.make_tokenizer(folder / "model")
    make.make_model(folder / "model", seed=0)
    make.make_prompts(folder / "prompts.jsonl")
    job = yaml.safe_load((_QUICKSTART / "job.yaml").read_text())
    job["metadata"]["name"] = name
    job["spec"]["maxSteps"] = max_steps
    del job["spec"]["targetReward"]
    job["spec"]["data"] |= data
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path
