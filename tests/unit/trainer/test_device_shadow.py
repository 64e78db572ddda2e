"""What changed in a model on a GPU, found there. The kernel runs here by Triton's interpreter; on a GPU it is measured,
and compared again, by `python -m benchmarks.weight_capture`.
"""

from __future__ import annotations

import pytest

from tests.support.interpreted import run_interpreted


@pytest.mark.slow
def test_it_finds_what_a_comparison_of_bytes_finds() -> None:
    run_interpreted("tests.support.trainer.interpreted_shadow")
