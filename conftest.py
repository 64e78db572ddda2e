"""How the tests run: guarded, in two tiers, several side by side, with the control plane built beside them."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# For torch, here and in every process that tests start: threads that wait for one another crawl on a busy machine, and
# sums depend on how many there are.
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("busy machine", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("busy machine")

pytest_plugins = [
    "tests.support.guarded_run",
    "tests.support.tiers",
    "tests.support.side_by_side",
    "tests.support.building",
]
