from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.support.api.manifests import changed, job, pool
from trimtab.api.generate import ROOT
from trimtab.cli.validate import validate


def _run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(validate, list(arguments), input=stdin)


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("**/*.yaml")), ids=lambda path: path.parent.name)
def test_the_examples_are_valid(file: Path) -> None:
    result = _run(str(file))
    assert result.exit_code == 0, result.output


def test_every_problem_of_every_file_is_reported_with_its_line(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(yaml.safe_dump_all([job(), changed(job("bad"), {"spec.data.groupsize": 4})], sort_keys=False))
    second.write_text(json.dumps(changed(pool(), {"spec.engine": {"name": "tgi"}, "spec.replicas": -1}), indent=1))
    result = _run(str(first), str(second))
    assert result.exit_code == 1
    assert f"{first}:1: RLJob/arithmetic is valid" in result.stdout
    line = first.read_text().splitlines().index("    groupsize: 4") + 1
    assert f"{first}:{line}: document 2: RLJob/bad: spec.data.groupsize: is not a field here" in result.stderr
    assert "RolloutPool/arithmetic-burst: spec.engine.name: must be one of builtin, sglang, openai" in result.stderr
    assert "spec.replicas: must be at least 0, is -1" in result.stderr
    assert f"{second}: 2 problems" in result.stderr


def test_standard_input_is_read() -> None:
    assert _run("-", stdin=yaml.safe_dump(job()).encode()).exit_code == 0
    assert _run("-", stdin=b"kind: RLJob").exit_code == 1


def test_documents_of_others_are_named_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "both.yaml"
    file.write_text(
        yaml.safe_dump_all([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}}, job()])
    )
    result = _run(str(file))
    assert result.exit_code == 0
    assert "not checked: ConfigMap/code" in result.stdout


@pytest.mark.parametrize("data", [b"", b"# nothing\n", b"apiVersion: v1\nkind: Pod\n"])
def test_a_file_without_our_kinds_is_a_problem(data: bytes) -> None:
    assert _run("-", stdin=data).exit_code == 1


@pytest.mark.parametrize("data", [b"a: [", b"\xff", b"a: 1\na: 2", b"[" * 10_000, b"!!python/object:x {}"])
def test_unreadable_input_has_its_own_exit_code(data: bytes) -> None:
    result = _run("-", stdin=data)
    assert result.exit_code == 2
    assert "-: unreadable: " in result.stderr


def test_missing_files_folders_and_odd_names_are_unreadable(tmp_path: Path) -> None:
    for name in (tmp_path / "absent.yaml", tmp_path, "nul\0byte"):
        result = _run(str(name))
        assert result.exit_code == 2
        assert "unreadable" in result.stderr
        assert "Traceback" not in result.output


def test_one_unreadable_file_does_not_hide_the_others(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(yaml.safe_dump(job()))
    result = _run("absent.yaml", str(good))
    assert result.exit_code == 2
    assert "RLJob/arithmetic is valid" in result.stdout


def test_terminal_escapes_in_a_manifest_are_not_passed_on() -> None:
    text = 'apiVersion: rl.trimtab.dev/v1alpha1\nkind: RLJob\nmetadata: {name: "\\e[2Jx"}\nspec: {"\\e[31m": 1}\n'
    result = _run("-", stdin=text.encode())
    assert result.exit_code == 1
    assert "\x1b" not in result.output


def test_it_runs_as_a_program_in_an_ascii_terminal(tmp_path: Path) -> None:
    file = tmp_path / "ünïcode.yaml"
    file.write_text("kind: Ünï", encoding="utf-8")
    command = [sys.executable, "-m", "trimtab.cli.validate", str(file)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=600)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
