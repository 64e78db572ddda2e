"""Decoding rows by their addresses, as CUDA graphs need it. The kernels run here by Triton's interpreter; on a GPU they
are measured, and compared again, by `python -m benchmarks.engine_gpu`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_rows_found_by_address_give_the_logits_of_rows_seen_as_views() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.rollout.interpreted_decode"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-3000:]
