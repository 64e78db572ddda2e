"""A version is released with what it leaves behind, so that later ones can be held to it."""

from __future__ import annotations

from tests.support.released.folders import released, this_version


def test_this_version_has_left_its_traces() -> None:
    assert this_version() in [folder.name for folder in released()], "run python -m tests.support.released.write"
