"""What images install is what pyproject.toml asks for, each package in one version and by its digests."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images.environment import IMAGES, ROOT

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _locked(role: str) -> dict[str, set[str]]:
    """Versions by name: several where they differ by platform."""
    found: dict[str, set[str]] = {}
    text = (ROOT / f"images/locks/{role}.txt").read_text(encoding="utf-8")
    for entry in re.findall(r"^(\S+)==(\S+)((?:.*\\\n)+.*)", text, flags=re.MULTILINE):
        name, version, rest = entry
        assert "--hash=sha256:" in rest, f"{name} has no digest"
        found.setdefault(canonicalize_name(name.partition("[")[0]), set()).add(version)
    return found


@pytest.mark.parametrize("role", IMAGES)
def test_a_lock_has_everything_the_extra_asks_for(role: str) -> None:
    locked = _locked(role)
    wanted = [*_PROJECT["dependencies"], *_PROJECT["optional-dependencies"][role]]
    for requirement in map(Requirement, wanted):
        versions = locked.get(canonicalize_name(requirement.name), set())
        assert versions, f"images/locks/{role}.txt lacks {requirement.name}: run make locks"
        assert all(map(requirement.specifier.contains, versions)), f"{requirement}: {versions}; run make locks"
