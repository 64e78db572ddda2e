"""Each image's environment, made by the Dockerfile's own steps, starts its entry point with nothing else installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.environment import IMAGES, EnvironmentBroken, build_environment, size_in_bytes, try_environment

pytestmark = pytest.mark.slow

_MB = 1_000_000


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("role", IMAGES)
def test_pods_of_an_image_start_in_it(role: str, tmp_path: Path) -> None:
    python = build_environment(role, tmp_path / "environment")
    try_environment(role, python)
    if role == "operator":
        assert size_in_bytes(tmp_path / "environment") < 400 * _MB
        with pytest.raises(EnvironmentBroken, match=r"No module named '(torch|numpy|numba)"):
            try_environment("rollout", python)
