"""How a rank ended is what the launcher ends with, as far as it matters to whoever would start it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.embedded.ports import free_ports
from trimtab.fabric.pod import EXIT_MISCONFIGURED


@pytest.mark.parametrize(("ended", "expected"), [(EXIT_MISCONFIGURED, EXIT_MISCONFIGURED), (3, 1), (0, 0)])
def test_a_rank_that_says_it_is_misconfigured_is_heard(tmp_path: Path, ended: int, expected: int) -> None:
    script = tmp_path / "rank.py"
    script.write_text(f"raise SystemExit({ended})")
    launched = subprocess.run(
        [
            sys.executable, "-m", "trimtab.trainer.launch",
            "--nnodes=1", "--node-rank=0", "--nproc-per-node=1", "--max-restarts=0",
            "--master-addr=127.0.0.1", f"--master-port={free_ports(1)[0]}", str(script),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )  # fmt: skip
    assert launched.returncode == expected, launched.stderr
