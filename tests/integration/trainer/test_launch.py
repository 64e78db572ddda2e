"""How a rank ended is what the launcher ends with, as far as it matters to whoever would start it again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.polling import eventually
from tests.support.processes import runs
from trimtab.embedded.ports import free_ports
from trimtab.fabric.pod import EXIT_MISCONFIGURED


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (EXIT_MISCONFIGURED, EXIT_MISCONFIGURED),
        pytest.param(3, 1, marks=pytest.mark.slow),
        pytest.param(0, 0, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_says_it_is_misconfigured_is_heard(tmp_path: Path, ended: int, expected: int) -> None:
    script = tmp_path / "rank.py"
    script.write_text(f"raise SystemExit({ended})")
    launched = subprocess.run(_launch(script), capture_output=True, text=True, timeout=600)
    assert launched.returncode == expected, launched.stderr


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


def _launch(script: Path) -> list[str]:
    return [
        sys.executable, "-m", "trimtab.trainer.launch",
        "--nnodes=1", "--node-rank=0", "--nproc-per-node=1", "--max-restarts=0",
        "--master-addr=127.0.0.1", f"--master-port={free_ports(1)[0]}", str(script),
    ]  # fmt: skip
