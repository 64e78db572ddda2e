"""What an agent may read: programs and the user's code, and nothing that was mounted or is the job's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trimtab.api.workflow import Workflow as WorkflowSpec
from trimtab.rollout.agents import files
from trimtab.rollout.agents.files import readable, volumes
from trimtab.rollout.workflows.external_agent import ExternalAgent
from trimtab.rollout.workflows.loader import load_workflow


def test_folders_and_memory_that_are_mounted_are_volumes_and_files_of_a_disk_are_not(tmp_path: Path) -> None:
    library, secret, folder = tmp_path / "libcuda.so", tmp_path / "token", tmp_path / "a b"
    library.touch()
    secret.touch()
    folder.mkdir()
    mounts = "\n".join(
        [
            f"1 0 8:1 / {library} ro - ext4 /dev/sda ro",
            f"2 0 0:9 / {secret} ro shared:1 - tmpfs tmpfs rw",
            f"3 0 8:1 /x {str(folder).replace(' ', chr(92) + '040')} rw - ext4 /dev/sda rw",
        ]
    )
    assert volumes(mounts) == [str(secret), str(folder)]


def test_a_volume_within_what_is_readable_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "usr" / "share" / "secret").mkdir(parents=True)
    (tmp_path / "usr" / "share" / "words").touch()
    (tmp_path / "usr" / "lib").mkdir()
    monkeypatch.setattr(files, "_SYSTEM", (str(tmp_path / "usr"),))
    monkeypatch.setattr(files, "volumes", lambda _: [str(tmp_path / "usr" / "share" / "secret")])
    found = readable(["true"], source=None, more=(), executables=os.defpath)
    ours = [path for path in found.whole if path.startswith(str(tmp_path))]
    assert sorted(ours) == [str(tmp_path / "usr" / "lib"), str(tmp_path / "usr" / "share" / "words")]
    assert str(tmp_path / "usr" / "share") in found.listed


def test_the_state_of_a_job_beside_its_code_stays_hidden(tmp_path: Path) -> None:
    (tmp_path / ".trimtab" / "job").mkdir(parents=True)
    (tmp_path / "agent.py").touch()
    found = readable(["true"], source=tmp_path, more=["/data"], executables=os.defpath)
    assert str(tmp_path / "agent.py") in found.whole
    assert "/data" in found.whole
    assert not [path for path in found.whole if ".trimtab" in path or path == str(tmp_path)]


def test_an_environment_of_the_agents_own_is_readable_with_the_python_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "own" / "bin").mkdir(parents=True)
    (tmp_path / "own" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "own" / "pyvenv.cfg").write_text(f"home = {tmp_path}/python/bin\nversion = 3.11")
    found = readable([str(tmp_path / "own" / "bin" / "python")], source=None, more=(), executables=os.defpath)
    assert {str(tmp_path / "own"), str(tmp_path / "python")} <= set(found.whole)


def test_files_of_the_command_are_those_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "agent.py").touch()
    spec = WorkflowSpec.model_validate(
        {
            "entrypoint": "trimtab.rollout.workflows.external_agent:ExternalAgent",
            "args": {"command": ["python", "agent.py", "--fast"], "reward": "tests.support.gateway.rewards:said_so"},
            "source": {"path": "code"},
        }
    )
    workflow = load_workflow(spec, folder=tmp_path, roles=["solver"])
    assert isinstance(workflow, ExternalAgent)
    assert workflow.command == ("python", str(tmp_path / "code" / "agent.py"), "--fast")
