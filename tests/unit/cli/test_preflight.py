"""What is wrong with the files of a job is said before anything starts, with field, file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.support.quickstart_manifest_files import write_quickstart
from trimtab.cli.preflight import problems
from trimtab.cli.run import run
from trimtab.fabric.pod import read_job


def found(file: Path) -> list[str]:
    return problems(read_job(file), file.parent)


def test_a_job_that_is_whole_has_none(tmp_path: Path) -> None:
    assert found(write_quickstart(tmp_path)) == []


def test_servers_that_one_machine_has_not(tmp_path: Path) -> None:
    file = write_quickstart(tmp_path)
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["streams"] = {"replicas": 3, "placement": {"cluster": "west"}, "maxBytes": 1 << 30}
    file.write_text(yaml.safe_dump(manifest))
    replicas, placement = found(file)
    assert replicas.startswith("spec.streams.replicas: 3 need as many NATS servers")
    assert placement.startswith("spec.streams.placement: ")


@pytest.mark.parametrize(
    ("entrypoint", "said"),
    [
        ("slow_tool:FastTool", "slow_tool.py has no class FastTool; it has SlowTool"),
        ("broken:Anything", "broken.py, line 2: "),
        ("nowhere_to_be_found:Target", "holds no nowhere_to_be_found.py, and no module of that name is installed"),
    ],
)
def test_a_class_that_is_not_there(tmp_path: Path, entrypoint: str, said: str) -> None:
    file = write_quickstart(tmp_path, entrypoint=entrypoint)
    (tmp_path / "broken.py").write_text("import os\nclass Anything(\n")
    (problem,) = found(file)
    assert f"spec.workflow.entrypoint {entrypoint!r}" in problem
    assert said in problem


@pytest.mark.parametrize(
    "code",
    ["from others import Tool", "from others import *", "Tool = make()", "try:\n    class Tool: ...\nfinally: ..."],
)
def test_classes_that_come_about_in_other_ways_are_left_to_the_pod(tmp_path: Path, code: str) -> None:
    file = write_quickstart(tmp_path, entrypoint="mine:Tool")
    (tmp_path / "mine.py").write_text(code)
    assert found(file) == []


def test_code_of_the_users_is_not_run(tmp_path: Path) -> None:
    file = write_quickstart(tmp_path, entrypoint="mine:Tool")
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\nclass Tool: ...")
    assert found(file) == []
    assert not (tmp_path / "was-run").exists()


def test_an_installed_class_needs_no_folder(tmp_path: Path) -> None:
    installed = "trimtab.rollout.workflows.single_turn:SingleTurn"
    assert found(write_quickstart(tmp_path, entrypoint=installed, source=None)) == []


def test_a_model_without_tokenizer_and_a_folder_without_model(tmp_path: Path) -> None:
    file = write_quickstart(tmp_path)
    (tmp_path / "model" / "tokenizer.json").unlink()
    assert found(file) == [
        f"spec.policies[solver].model.uri: {tmp_path / 'model'} holds no tokenizer, such as a tokenizer.json; save the "
        "model's tokenizer into it"
    ]
    (tmp_path / "model" / "config.json").unlink()
    assert "holds no config.json" in found(file)[0]


def test_a_tokenizer_may_lie_elsewhere(tmp_path: Path) -> None:
    file = write_quickstart(tmp_path)
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["policies"][0]["model"]["tokenizer"] = "words"
    file.write_text(yaml.safe_dump(manifest))
    assert found(file)[0].startswith(f"spec.policies[solver].model.tokenizer: {tmp_path / 'words'}")
    (tmp_path / "words").mkdir()
    (said,) = found(file)
    assert said.endswith("words holds no tokenizer, such as a tokenizer.json")
    (tmp_path / "model" / "tokenizer.json").rename(tmp_path / "words" / "tokenizer.json")
    assert found(file) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            '{"prompt": "1+1="}\n\n{"question": "2+2="}\n',
            "prompts.jsonl, line 3: expected an object with the key 'prompt'",
        ),
        ('{"prompt": "1+1="}\nnot JSON\n', "prompts.jsonl, line 2: not JSON: Expecting value"),
        ('{"prompt": 3}\n', "prompts.jsonl, line 1: 'prompt' is of type int"),
        ("\n \n", "prompts.jsonl holds no prompt"),
        ("", "prompts.jsonl holds no prompt"),
        ("[" * 100_000, "prompts.jsonl, line 1: "),
    ],
    ids=["without the column", "not JSON", "of another type", "blank", "empty", "nonsense"],
)
def test_prompts_that_are_none(tmp_path: Path, content: str, said: str) -> None:
    file = write_quickstart(tmp_path)
    (tmp_path / "prompts.jsonl").write_text(content)
    (problem,) = found(file)
    assert problem.startswith("spec.data.prompts[train].jsonl.uri: ")
    assert said in problem


def test_of_a_long_file_only_the_beginning_is_read(tmp_path: Path) -> None:
    file = write_quickstart(tmp_path)
    with (tmp_path / "prompts.jsonl").open("a") as prompts:
        prompts.write('{"prompt": "?"}\n' * 1000 + "not JSON\n")
    assert found(file) == []


def test_every_problem_is_in_the_one_message_that_the_run_ends_with(tmp_path: Path) -> None:
    file = write_quickstart(tmp_path, entrypoint="slow_tool:FastTool")
    (tmp_path / "held_out.jsonl").unlink()
    said = CliRunner().invoke(run, [str(file)])
    assert said.exit_code == 1
    assert "spec.evaluation.benchmarks[held-out].jsonl.uri" in said.stderr
    assert "slow_tool.py has no class FastTool" in said.stderr
    assert not (tmp_path / ".trimtab").exists()
