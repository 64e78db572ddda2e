"""Decoding rows by their addresses, as CUDA graphs need it. The kernels run here by Triton's interpreter; on a GPU they
are measured, and compared again, by `python -m benchmarks.engine_gpu`.
"""

from __future__ import annotations

import pytest

from tests.support.interpreted import run_interpreted


@pytest.mark.slow
def test_rows_found_by_address_give_the_logits_of_rows_seen_as_views() -> None:
    run_interpreted("tests.support.rollout.interpreted_decode")
