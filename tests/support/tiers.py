"""Two tiers of tests: what `make test` runs in ten minutes, and with `--all` everything, at full size.

A test that is marked `slow` runs in the second tier only. Storms and kills run in both, in two sizes (sizes.py).
`--part` narrows either tier to one part of the product.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.sizes import FULL, SMALL, Sizes

PARTS = {
    "api": ("unit/api", "cluster/test_api_", "cluster/test_examples.py"),
    "fabric": ("unit/fabric", "integration/fabric"),
    "weights": ("unit/weights", "integration/weights", "chaos/test_host_copy", "chaos/test_weight_transfer"),
    "dataflow": (
        "unit/dataflow",
        "integration/dataflow",
        "chaos/test_dataflow",
        "chaos/test_stage",
        "chaos/test_leader",
        "chaos/test_three",
        "chaos/test_torn",
    ),
    "rollout": (
        *(
            "unit/rollout",
            "integration/rollout",
            "integration/gateway",
            "integration/sandbox",
            "integration/code",
            "contract",
            "sglang",
        ),
        *("chaos/test_rollout", "chaos/test_claim"),
    ),
    "trainer": ("unit/trainer", "integration/trainer", "integration/learning", "chaos/test_rank"),
    "operator": (
        *(f"unit/{folder}" for folder in ("operator", "kube", "embedded", "devcluster", "cli")),
        *(f"integration/{folder}" for folder in ("operator", "embedded", "cli")),
        *(f"cluster/{tests}" for tests in ("operator", "kube", "devcluster", "remote", "test_control_plane.py")),
        "chaos/test_operator",
    ),
    "chart": (
        *(f"unit/{folder}" for folder in ("chart", "monitoring", "images")),
        *(f"integration/{folder}" for folder in ("images", "security")),
        *(f"cluster/{tests}" for tests in ("test_chart.py", "release")),
    ),
    "jobs": (
        *("integration/quickstart", "integration/examples", "unit/examples"),
        *("chaos/test_kill_each_process", "chaos/test_power", "chaos/test_upgrades"),
    ),
    "project": ("unit/project", "integration/project"),
}
_TESTS = Path(__file__).parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--all", action="store_true", help="run slow tests too, and storms at full size")
    group.addoption("--part", choices=sorted(PARTS), help="run the tests of this part alone")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: runs with --all only (make test-all, make test-PART)")
    profile = "tier"
    settings.register_profile(
        profile, max_examples=_sizes(config).examples, suppress_health_check=[HealthCheck.too_slow], deadline=None
    )
    settings.load_profile(profile)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("part")
    # Whoever names a test wants to see it run.
    named = any("::" in argument for argument in config.args)
    left_out = [
        item
        for item in items
        if (item.get_closest_marker("slow") and not (config.getoption("all") or named))
        or (part is not None and part_of(item.path) != part)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        dropped = set(left_out)
        items[:] = [item for item in items if item not in dropped]


def part_of(file: Path) -> str | None:
    """The part that a test belongs to, by where it lies; None for tests of something else, such as the benchmarks."""
    if not file.is_relative_to(_TESTS):
        return None
    path = file.relative_to(_TESTS).as_posix()
    return next((part for part, places in PARTS.items() if path.startswith(places)), None)


@pytest.fixture(scope="session")
def sizes(pytestconfig: pytest.Config) -> Sizes:
    sizes = _sizes(pytestconfig)
    hostile_objects = os.environ.get("TRIMTAB_HOSTILE_OBJECTS")
    return sizes if hostile_objects is None else replace(sizes, hostile_objects=int(hostile_objects))


def _sizes(config: pytest.Config) -> Sizes:
    return FULL if config.getoption("all") else SMALL
