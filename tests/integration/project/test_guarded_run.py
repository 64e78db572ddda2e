"""A run of the tests that is killed, interrupted or told to stop leaves no process, no mount and no folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.guarded_run import FOLDER
from tests.support.polling import eventually
from tests.support.processes import runs

_ROOT = Path(__file__).parents[3]
_MARK = "TESTS_LEFTOVER"
_STUBBORN = """
import os, signal, subprocess, sys, tempfile, time
from pathlib import Path

from tests.support.guarded_run import memory_folder
from trimtab.devcluster.container.sandbox import find_sandbox
from trimtab.embedded.nats_server import EmbeddedNats

IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


def test_starts_what_does_not_end_by_itself(tmp_path):
    memory = memory_folder()
    subprocess.Popen([sys.executable, "-c", IGNORES], start_new_session=True)
    subprocess.run(["sh", "-c", "(sleep 3600 &)"])
    sandbox, _ = find_sandbox()
    view = ["--bind", "/", "/", "--tmpfs", str(tmp_path), "--proc", "/proc"]
    subprocess.Popen([sandbox.bwrap, "--unshare-pid", *view, "sleep", "3600"])
    with EmbeddedNats(Path(tempfile.mkdtemp())):
        Path(os.environ["STARTED"]).write_text(memory.name)
        time.sleep(3600)
"""


class Run:
    """Of a test that starts all kinds of processes and waits for ever."""

    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.started = folder / "started"
        self._parent = folder / "runs"
        self._parent.mkdir()
        file = folder / "test_stubborn.py"
        file.write_text(_STUBBORN)
        environment = os.environ | {
            _MARK: self.mark,
            "STARTED": str(self.started),
            FOLDER: str(self._parent / "around"),
            "PYTEST_ADDOPTS": "",
        }
        environment.pop("PYTEST_XDIST_WORKER", None)
        # As a shell starts what is to run in the background.
        background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
        self.caller = subprocess.Popen(
            [
                *background,
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "tests.support.guarded_run",
                "--noconftest",
                "-n",
                "1",
                str(file),
            ],
            cwd=_ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def row(self) -> dict[str, psutil.Process]:
        caller = psutil.Process(self.caller.pid)
        (guard,) = caller.children()
        # The first of its children; the others were adopted.
        tests = min(guard.children(), key=psutil.Process.create_time)
        return {"caller": caller, "guard": guard, "tests": tests}

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(_MARK) == self.mark and runs(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def leftovers(self) -> list[object]:
        return [*self.processes(), *self._parent.iterdir(), *self._mounts(), *self._memory()]

    def _mounts(self) -> list[str]:
        return [line for line in Path("/proc/mounts").read_text().splitlines() if str(self._parent) in line]

    def _memory(self) -> list[Path]:
        memory = Path(self.started.read_text())
        return [memory] if memory.exists() else []


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    started = Run(tmp_path)
    yield started
    for process in started.processes():
        process.kill()
    started.caller.communicate()


@pytest.mark.parametrize(
    ("victim", "signum"),
    [
        ("caller", signal.SIGKILL),
        pytest.param("tests", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("caller", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("guard", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("caller", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
async def test_nothing_outlives_a_run(run: Run, victim: str, signum: signal.Signals) -> None:
    def started() -> bool:
        assert run.caller.poll() is None, run.caller.communicate()[0]
        return run.started.exists() and run.started.read_text() != ""

    await eventually(started, timeout_s=60.0)
    # The row, one that runs tests, the two sleepers, the sandbox with its own, NATS and who watches over it.
    assert len(run.processes()) >= 9
    run.row()[victim].send_signal(signum)
    await eventually(lambda: run.caller.poll() is not None and not run.leftovers(), timeout_s=30.0)
    assert run.caller.returncode != 0
