"""What is looked at before a job starts: the machine, the kinds of its models, their tokenizers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.support.cli.rows import make_tokenizer
from tests.support.quickstart_manifest_files import write_quickstart
from trimtab.cli.doctor import doctor
from trimtab.cli.finding import Level
from trimtab.cli.machine import Machine, weighed
from trimtab.cli.model_checks import models
from trimtab.cli.run import run
from trimtab.fabric.pod import read_job

GIB = 1 << 30


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A job with a tokenizer that can be read."""
    made = write_quickstart(tmp_path)
    make_tokenizer(tmp_path / "model")
    return made


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(folder=tmp_path, free_disk_bytes=64 * GIB, free_memory_bytes=16 * GIB, gpus=0, ports=True)


def changed(file: Path, change: dict[str, Any]) -> Path:
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"] |= change
    file.write_text(yaml.safe_dump(manifest))
    return file


def said(file: Path, machine: Machine, level: Level) -> list[str]:
    job = read_job(file)
    found = [*models(job, file.parent), *weighed(job, file.parent, machine)]
    return [one.text for one in found if one.level is level]


def test_a_job_that_fits_has_neither_problems_nor_warnings(file: Path, machine: Machine) -> None:
    assert said(file, machine, Level.PROBLEM) == []
    assert said(file, machine, Level.WARNING) == []
    assert any("solver is a model of type llama" in one for one in said(file, machine, Level.FINE))


def test_a_machine_without_ports_or_disk(file: Path, machine: Machine) -> None:
    ports, disk = said(file, replace(machine, ports=False, free_disk_bytes=GIB // 2), Level.PROBLEM)
    assert ports.startswith("ports: there are no 32 free ports")
    assert disk.startswith("disk: 536.9 MB are free")
    assert "--state-folder" in disk


def test_a_model_that_is_too_large_for_the_machine(file: Path, machine: Machine) -> None:
    """Two gigabytes of bf16 are a billion weights: sixteen for the trainer, four for the engine."""
    with (file.parent / "model" / "model.safetensors").open("r+b") as weights:
        weights.truncate(2 * GIB)
    disk, memory = said(file, replace(machine, free_disk_bytes=30 * GIB), Level.WARNING)
    assert disk.startswith("disk: checkpoints and weights of this job take about 45.1 GB")
    assert memory.startswith("memory: trainers and engines of this job take about 21.5 GB, and 17.2 GB are available")
    assert said(file, replace(machine, gpus=1), Level.WARNING) == []


def test_engines_and_trainers_that_want_gpus(file: Path, machine: Machine) -> None:
    manifest = yaml.safe_load(file.read_text())["spec"]
    manifest["pools"][0]["engine"] = {"name": "sglang"}
    manifest["policies"][0]["trainer"] |= {"devicesPerReplica": 2, "resources": {"limits": {"nvidia.com/gpu": 2}}}
    changed(file, manifest)
    engine, trainer = said(file, machine, Level.WARNING)
    assert engine.startswith("spec.pools[local].engine: sglang computes on GPUs")
    assert trainer == "spec.policies[solver].trainer: it asks for 2 GPUs, and here are 0"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mamba"}, "is a model of type 'mamba', and the builtin engine of pool local computes llama"),
        ({"model_type": "qwen3", "quantization_config": {"bits": 4}}, "is quantised"),
        ({}, "is a model of type 'None'"),
    ],
)
def test_models_that_the_engine_does_not_compute(
    config: dict[str, Any], words: str, file: Path, machine: Machine
) -> None:
    (file.parent / "model" / "config.json").write_text(json.dumps(config))
    (problem,) = said(file, machine, Level.PROBLEM)
    assert problem.startswith("spec.policies[solver].model.uri: ")
    assert words in problem


def test_a_chat_needs_a_template(file: Path, machine: Machine) -> None:
    single = "trimtab.rollout.workflows.single_turn:SingleTurn"
    changed(file, {"workflow": {"entrypoint": single, "args": {"chat": {"system": "You are brief."}}}})
    (problem,) = said(file, machine, Level.PROBLEM)
    assert "has no chat template, and spec.workflow.args.chat needs one" in problem
    (file.parent / "model" / "chat_template.jinja").write_text("{{ messages }}")
    assert said(file, machine, Level.PROBLEM) == []


def test_a_tokenizer_that_is_none(file: Path, machine: Machine) -> None:
    (file.parent / "model" / "tokenizer.json").write_text("{}")
    (problem,) = said(file, machine, Level.PROBLEM)
    assert "tokenizer.json is no tokenizer: " in problem


def test_the_command_tells_what_is_fine_and_what_is_not(file: Path) -> None:
    told = CliRunner().invoke(doctor, [str(file)])
    assert told.exit_code == 0, told.output
    assert "✓ nats-server is " in told.output
    assert "its files are there" in told.output
    (file.parent / "held_out.jsonl").unlink()
    (file.parent / "model" / "config.json").write_text('{"model_type": "\\u001b[2Jmamba"}')
    told = CliRunner().invoke(doctor, [str(file)])
    assert told.exit_code == 1
    assert "✗ spec.evaluation.benchmarks[held-out].jsonl.uri" in told.output
    assert "\x1b" not in told.output


def test_the_command_looks_at_a_machine_without_a_job() -> None:
    told = CliRunner().invoke(doctor, [])
    assert told.exit_code == 0, told.output
    assert "of memory are available" in told.output


def test_run_looks_at_the_same(file: Path) -> None:
    (file.parent / "model" / "config.json").write_text('{"model_type": "mamba"}')
    told = CliRunner().invoke(run, [str(file)])
    assert told.exit_code == 1
    assert "is a model of type 'mamba'" in told.stderr
    assert not (file.parent / ".trimtab").exists()
