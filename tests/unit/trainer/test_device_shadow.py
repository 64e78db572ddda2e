"""What changed in a model on a GPU, found there. The kernel runs here by Triton's interpreter; on a GPU it is measured,
and compared again, by `python -m benchmarks.weight_capture`.
"""

from __future__ import annotations

import os
import subprocess
import sys


def test_it_finds_what_a_comparison_of_bytes_finds() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.trainer.interpreted_shadow"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-3000:]
