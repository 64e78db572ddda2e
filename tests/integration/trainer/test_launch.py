"""How a rank ended is what the launcher ends with, and the ranks of a pod live, die and are told things together."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from tests.support.polling import eventually
from tests.support.processes import runs
from trimtab.embedded.ports import free_ports
from trimtab.fabric.pod import EXIT_MISCONFIGURED
from trimtab.trainer.launch import exit_code


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (EXIT_MISCONFIGURED, EXIT_MISCONFIGURED),
        pytest.param(3, 3, marks=pytest.mark.slow),
        pytest.param(0, 0, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_says_it_is_misconfigured_is_heard(tmp_path: Path, ended: int, expected: int) -> None:
    script = tmp_path / "rank.py"
    script.write_text(f"raise SystemExit({ended})")
    launched = subprocess.run(_launch(script), capture_output=True, text=True, timeout=600)
    assert launched.returncode == expected, launched.stderr


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([(2.0, -15), (1.0, 5)], 5),
        ([(1.0, -9), (2.0, -15)], 128 + 9),
        ([(1.0, 1), (1.0, -9)], 128 + 9),
        ([(1.0, 1), (2.0, EXIT_MISCONFIGURED)], EXIT_MISCONFIGURED),
    ],
)
def test_the_rank_that_failed_first_is_heard(failures: list[tuple[float, int]], expected: int) -> None:
    found = []
    for rank, (when, code) in enumerate(failures):
        failure = ProcessFailure(local_rank=rank, pid=1, exitcode=code, error_file="/none")
        failure.timestamp = int(when)
        found.append(failure)
    assert exit_code(found) == expected


_TWO_RANKS = """
import os, pathlib, signal, sys, time
from trimtab.fabric.parent_death import die_with_launcher
die_with_launcher()
signal.signal(signal.SIGTERM, lambda *_: (told.write_text("told"), sys.exit(0)))
rank = os.environ["LOCAL_RANK"]
told = pathlib.Path({folder!r}) / f"told-{{rank}}"
(pathlib.Path({folder!r}) / f"rank-{{rank}}").write_text(str(os.getpid()))
while True:
    time.sleep(0.05)
    if rank == "1" and (pathlib.Path({folder!r}) / "fail").exists():
        {end}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("end", "expected"), [("sys.exit(5)", 5), ("os.kill(os.getpid(), 9)", 128 + 9)])
async def test_a_rank_that_fails_takes_those_of_its_pod_along(tmp_path: Path, end: str, expected: int) -> None:
    script = tmp_path / "rank.py"
    script.write_text(_TWO_RANKS.format(folder=str(tmp_path), end=end))
    with subprocess.Popen(_launch(script, ranks=2)) as launcher:
        other = (await _ranks(tmp_path, launcher))[0]
        (tmp_path / "fail").touch()
        await eventually(lambda: launcher.poll() is not None, timeout_s=60.0)
    assert launcher.returncode == expected
    assert not runs(other)


@pytest.mark.slow
async def test_all_ranks_of_a_pod_are_told_to_leave(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(_TWO_RANKS.format(folder=str(tmp_path), end="pass"))
    with subprocess.Popen(_launch(script, ranks=2)) as launcher:
        ranks = await _ranks(tmp_path, launcher)
        launcher.send_signal(signal.SIGTERM)
        await eventually(lambda: launcher.poll() is not None, timeout_s=60.0)
    assert not any(map(runs, ranks))
    assert [(tmp_path / f"told-{rank}").read_text() for rank in range(2)] == ["told", "told"]


async def _ranks(folder: Path, launcher: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Both, when both run."""
    files = [folder / f"rank-{rank}" for rank in range(2)]
    await eventually(
        lambda: all(file.is_file() and file.read_text() for file in files), timeout_s=60.0, ended=launcher.poll
    )
    return [psutil.Process(int(file.read_text())) for file in files]


async def test_no_rank_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    script, told = tmp_path / "rank.py", tmp_path / "rank"
    script.write_text(
        "import os, pathlib, time\n"
        "from trimtab.fabric.parent_death import die_with_launcher\n"
        "die_with_launcher()\n"
        f"pathlib.Path({str(told)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(_launch(script)) as launcher:
        await eventually(lambda: told.is_file() and bool(told.read_text()), timeout_s=60.0, ended=launcher.poll)
        rank = psutil.Process(int(told.read_text()))
        launcher.send_signal(signal.SIGKILL)
    await eventually(lambda: not runs(rank), timeout_s=10.0)


def _launch(script: Path, *, ranks: int = 1) -> list[str]:
    return [
        sys.executable, "-m", "trimtab.trainer.launch",
        "--nnodes=1", "--node-rank=0", f"--nproc-per-node={ranks}", "--max-restarts=0",
        "--master-addr=127.0.0.1", f"--master-port={free_ports(1)[0]}", str(script),
    ]  # fmt: skip
