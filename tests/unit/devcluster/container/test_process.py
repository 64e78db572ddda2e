"""Real processes, inside the sandbox and without it: ends, signals, and nothing left of what they started."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from tests.support.polling import eventually, within
from trimtab.devcluster.container.process import CapturedOutput, ContainerProcess, Launch, StartError
from trimtab.devcluster.container.sandbox import Mount, Sandbox, find_sandbox


@pytest.fixture(params=["sandboxed", "plain"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox | None:
    if request.param == "plain":
        return None
    found, problem = find_sandbox()
    assert found is not None, problem
    return found


def launch(*command: str, folder: Path) -> Launch:
    private = [Mount(source=folder, target=Path("/tmp"))]
    return Launch(command=command, environment={"PATH": os.environ["PATH"]}, folder=folder, mounts=private)


def in_view(sandbox: Sandbox | None, one: Launch) -> Launch:
    """In the sandbox the folder is the private /tmp."""
    return one if sandbox is None else Launch(**{**vars(one), "folder": Path("/tmp")})


async def started(sandbox: Sandbox | None, *command: str, folder: Path) -> tuple[ContainerProcess, CapturedOutput]:
    output = CapturedOutput()
    process = await ContainerProcess.start(
        in_view(sandbox, launch(*command, folder=folder)), sandbox=sandbox, output=output
    )
    return process, output


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)])
async def test_exit_codes(sandbox: Sandbox | None, tmp_path: Path, script: str, code: int) -> None:
    process, output = await started(sandbox, "sh", "-c", f"echo said; {script}", folder=tmp_path)
    assert await within(process.wait(), 20) == code
    assert output.text == "said\n"


async def test_sigterm_reaches_the_first_process_once(sandbox: Sandbox | None, tmp_path: Path) -> None:
    told = "while [ -z $told ]; do sleep 0.05 & wait $!; done"
    script = f"trap 'echo got; told=yes' TERM; echo up; {told}; for i in 1 2 3 4; do sleep 0.05 & wait $!; done; exit 5"
    process, output = await started(sandbox, "sh", "-c", script, folder=tmp_path)
    await eventually(lambda: "up" in output.text, timeout_s=10)
    process.terminate()
    assert await within(process.wait(), 20) == 5
    assert output.text.count("got") == 1


async def test_nothing_outlives_the_container(tmp_path: Path) -> None:
    """A daemon in a session of its own is out of reach of a group's signal, and not of the sandbox's."""
    found, problem = find_sandbox()
    assert found is not None, problem
    mark = uuid.uuid4().hex
    daemon = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
    sleeper = (sys.executable, "-c", "import time; time.sleep(1000)", mark)
    process, _ = await started(found, sys.executable, "-c", daemon, *sleeper, folder=tmp_path)
    assert await within(process.wait(), 20) == 0
    await eventually(lambda: not _marked(mark), timeout_s=10)


async def test_a_program_that_is_not_there(sandbox: Sandbox | None, tmp_path: Path) -> None:
    if sandbox is None:
        with pytest.raises(StartError, match="no-such-program"):
            await started(sandbox, "no-such-program", folder=tmp_path)
    else:
        process, output = await started(sandbox, "no-such-program", folder=tmp_path)
        assert await within(process.wait(), 20) == 1
        assert "no-such-program" in output.text


def test_where_bubblewrap_cannot_run_it_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'no permission to create a namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    assert find_sandbox(bwrap=broken) == (None, "bubblewrap cannot run here: no permission to create a namespace")


def _marked(mark: str) -> list[int]:
    return [process.pid for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or ())]
