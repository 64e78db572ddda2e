"""One process has a job's state folder at a time, and another is told which."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.quickstart_manifest_files import write_quickstart
from trimtab.cli.run import run
from trimtab.cli.state_folder import StateFolderInUse, clear, held


def test_who_comes_second_is_told_who_has_it(tmp_path: Path) -> None:
    told = pytest.raises(StateFolderInUse, match=f"process {os.getpid()} runs on")
    with held(tmp_path / "state"), told, held(tmp_path / "state"):
        pass
    with held(tmp_path / "state"):
        pass


def test_a_killed_process_has_it_no_more(tmp_path: Path) -> None:
    code = "import os, sys; from pathlib import Path; from trimtab.cli.state_folder import held\n"
    code += "with held(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    with held(tmp_path):
        pass


def test_clearing_it_leaves_the_lock_where_others_look(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    state = tmp_path / "state"
    with held(state):
        (state / "secrets").mkdir()
        (state / "secrets" / "password").touch()
        (state / "history.jsonl").touch()
        (state / "link").symlink_to(tmp_path / "elsewhere")
        clear(state)
        assert [entry.name for entry in state.iterdir()] == ["lock"]
        with pytest.raises(StateFolderInUse), held(state):
            pass
    assert (tmp_path / "elsewhere" / "kept").exists()


@pytest.mark.parametrize("options", [(), ("--fresh",)], ids=["again", "fresh"])
def test_a_job_that_runs_is_not_run_twice_and_nothing_of_it_is_deleted(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    file = write_quickstart(tmp_path)
    state = tmp_path / ".trimtab" / "quickstart"
    with held(state):
        (state / "secrets").mkdir()
        said = CliRunner().invoke(run, [str(file), *options])
        assert said.exit_code == 1
        assert f"quickstart is running already: process {os.getpid()} runs on {state}" in said.stderr
        assert (state / "secrets").is_dir()
