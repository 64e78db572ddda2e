"""What the launcher does about a server that dies, hangs, never becomes ready or will not go.

tests/sglang does it with SGLang; here a small server stands in for one, as SGLang cannot be made to hang on request.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.support.polling import eventually, within
from tests.support.processes import runs
from trimtab.embedded.ports import free_ports
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.restarts import RestartPolicy
from trimtab.rollout.engines.sglang.command import ServerCommand
from trimtab.rollout.engines.sglang.supervisor import Patience, ServerNotReady, ServerProbe, Supervisor

_SERVER = """
import http.server, os, signal, subprocess, sys, time
from pathlib import Path

mode, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
number = len(list(folder.iterdir()))
(folder / str(os.getpid())).touch()
if mode == "refuses":
    sys.exit(2)
if mode == "crashes":
    sys.exit(1)
if mode == "starts forever":
    time.sleep(1000)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/server_info" and mode == "hangs at first" and number == 0:
            time.sleep(1000)
        self.send_response(200)
        self.end_headers()

http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
_QUICK = Patience(
    startup_s=60.0,
    silence_s=60.0,
    readiness_poll_s=0.05,
    liveness_poll_s=0.05,
    answer_s=1.0,
    grace_s=0.5,
    restarts=RestartPolicy(backoff=FullJitter(base_s=0.1, cap_s=0.4), stable_s=1000.0),
)


class Launch:
    """A supervisor over the stand-in; each start leaves a file with its process id as name."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "server.py"
        self.script.write_text(_SERVER)
        self.starts = folder / "starts"
        self.starts.mkdir()
        (port,) = free_ports(1)
        self.port = port
        self.stopping = asyncio.Event()
        self.probe = ServerProbe.at(f"http://127.0.0.1:{port}", answer_s=_QUICK.answer_s)

    def run(self, mode: str, *, patience: Patience = _QUICK) -> asyncio.Task[None]:
        arguments = (sys.executable, str(self.script), mode, str(self.port), str(self.starts))
        command = ServerCommand(arguments=arguments, environment=dict(os.environ))
        return asyncio.create_task(Supervisor(command, self.probe, patience=patience).run(self.stopping))

    def pids(self) -> list[int]:
        return [int(file.name) for file in self.starts.iterdir()]

    async def until_alive(self, starts: int) -> None:
        async def alive() -> bool:
            return len(self.pids()) >= starts and await self.probe.alive()

        await eventually(alive, timeout_s=30.0)


@pytest.fixture
async def launch(tmp_path: Path) -> AsyncIterator[Launch]:
    launch = Launch(tmp_path)
    yield launch
    await launch.probe.close()


async def test_a_server_that_died_is_started_again(launch: Launch) -> None:
    running = launch.run("serves")
    await launch.until_alive(1)
    (first,) = launch.pids()
    os.kill(first, signal.SIGKILL)
    await launch.until_alive(2)
    launch.stopping.set()
    await within(running, 10.0)
    assert not any(psutil.pid_exists(pid) for pid in launch.pids())


async def test_a_server_whose_scheduler_does_not_answer_is_started_again(launch: Launch) -> None:
    running = launch.run("hangs at first", patience=replace(_QUICK, silence_s=1.0))
    await launch.until_alive(2)
    launch.stopping.set()
    await within(running, 10.0)


async def test_what_ignores_sigterm_is_killed_with_all_that_it_started(launch: Launch) -> None:
    running = launch.run("stubborn")
    await launch.until_alive(1)
    server = psutil.Process(launch.pids()[0])
    family = [server, *server.children(recursive=True)]
    assert len(family) == 2
    launch.stopping.set()
    await within(running, 10.0)
    await eventually(lambda: not any(map(runs, family)), timeout_s=10.0)


async def test_arguments_that_the_server_refuses_are_the_jobs_fault(launch: Launch) -> None:
    with pytest.raises(JobMisconfigured, match="refused an argument"):
        await within(launch.run("refuses"), 20.0)


async def test_a_server_that_never_becomes_ready_is_given_up(launch: Launch) -> None:
    patience = Patience(startup_s=1.0, readiness_poll_s=0.05, answer_s=0.3, grace_s=0.5)
    with pytest.raises(ServerNotReady, match="within 1 s"):
        await within(launch.run("starts forever", patience=patience), 30.0)
    assert not any(psutil.pid_exists(pid) for pid in launch.pids())


@pytest.mark.slow
async def test_one_that_ends_again_and_again_is_tried_ever_more_seldom_and_given_up(launch: Launch) -> None:
    restarts = RestartPolicy(backoff=FullJitter(base_s=0.4, cap_s=60.0), stable_s=60.0)
    patience = Patience(startup_s=7.0, readiness_poll_s=0.05, answer_s=0.3, grace_s=0.5, restarts=restarts)
    with pytest.raises(ServerNotReady, match="within 7 s"):
        await within(launch.run("crashes", patience=patience), 60.0)
    # At least 0.2, 0.4, 0.8, 1.6 and 3.2 seconds between them are 6 already. On a busy machine one lives as long.
    assert len(launch.pids()) <= 7


@pytest.mark.slow
async def test_servers_that_died_together_come_back_after_waits_that_were_drawn(launch: Launch) -> None:
    asked: list[float] = []

    def drawn(low: float, high: float) -> float:
        asked.append(high)
        return low

    restarts = RestartPolicy(backoff=FullJitter(base_s=0.02, cap_s=0.04, uniform=drawn), stable_s=1000.0)
    running = launch.run("crashes", patience=replace(_QUICK, restarts=restarts))
    await eventually(lambda: len(asked) >= 3, timeout_s=30.0)
    launch.stopping.set()
    await within(running, 10.0)
    assert asked[:3] == [0.02, 0.04, 0.04]
