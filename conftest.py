"""How the tests run: guarded, in two tiers, several side by side, with the control plane built beside them."""

from __future__ import annotations

import os

# For torch, here and in every process that tests start: threads that wait for one another crawl on a busy machine, and
# sums depend on how many there are.
os.environ["OMP_NUM_THREADS"] = "1"

pytest_plugins = [
    "tests.support.guarded_run",
    "tests.support.tiers",
    "tests.support.heap",
    "tests.support.failures",
    "tests.support.side_by_side",
    "tests.support.building",
]
