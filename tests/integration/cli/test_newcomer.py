"""What somebody new does: a job from a template, a run of it, a look at what it said, its model taken out."""

from __future__ import annotations

import json
import string
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.tiny_model import make_model, make_tokenizer

_CHARACTERS = string.ascii_letters + string.digits + " ?+\n."


def _trimtab(*arguments: str) -> str:
    command = [sys.executable, "-m", "trimtab.cli.main", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow
def test_a_template_runs_and_its_model_and_its_words_come_out(tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    _trimtab("init", "single-turn", str(folder))
    make_tokenizer(folder / "model", characters=_CHARACTERS)
    make_model(folder / "model", characters=_CHARACTERS, seed=0, context=128)
    manifest = yaml.safe_load((folder / "job.yaml").read_text())
    # As many words as a model with random weights has to say.
    manifest["spec"] |= {"maxSteps": 4}
    manifest["spec"]["policies"][0]["sampling"]["maxTokens"] = 4
    manifest["spec"]["evaluation"]["everySteps"] = 2
    manifest["spec"]["evaluation"]["benchmarks"][0]["sampling"]["maxTokens"] = 4
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest))
    assert "✗" not in _trimtab("doctor", str(folder / "job.yaml"))
    _trimtab("run", str(folder / "job.yaml"))
    place = ("--state-folder", str(folder / ".trimtab" / "sums"))
    said = _trimtab("samples", "sums", *place, "--step", "1", "--limit", "2")
    assert "── prompt · " in said
    assert "What is " in said
    assert "(brief 1, right 0)" in said or "(right 0, brief 1)" in said
    _trimtab("samples", "sums", *place, "--output", str(tmp_path / "rows.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert sum(row["step"] is not None for row in rows) == 4 * 64
    _trimtab("weights", "pull", str(tmp_path / "taught"), *place)
    _trimtab("weights", "pull", str(tmp_path / "best"), *place, "--best")
    _trimtab("push", str(tmp_path / "hub"), *place, "--best")
    card = (tmp_path / "hub" / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["model-index"][0]["results"][0]["dataset"]["name"] == "held-out"
    record = json.loads((tmp_path / "hub" / "trimtab.json").read_text())
    assert record["job"] == "sums"
    assert record["version"] <= 4
    assert not {file.name for file in (tmp_path / "hub").iterdir()} & {"copy.json", "copy.lock", ".spool"}
    for name in ("taught", "best", "hub"):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert model.config.vocab_size == len(_CHARACTERS)
        assert AutoTokenizer.from_pretrained(tmp_path / name).decode([0]) == "a"
