"""What is installed, here and in images, is what pyproject.toml asks for: each package by its digests, and everywhere
in the version that the tests ran with."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from examples.sglang.environment import VERSION
from images.environment import IMAGES, ROOT

_WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_PROJECT = _WHOLE["project"]
_DEV = "requirements-dev.txt"
_TRACKERS = ROOT / "tests/support/cli/tracker_requirements.txt"


def _locked(lock: str) -> dict[str, set[str]]:
    """Versions by name: several where they differ by platform."""
    found: dict[str, set[str]] = {}
    text = (ROOT / lock).read_text(encoding="utf-8")
    for entry in re.findall(r"^(\S+)==(\S+)((?:.*\\\n)+.*)", text, flags=re.MULTILINE):
        name, version, rest = entry
        assert "--hash=sha256:" in rest, f"{name} has no digest"
        found.setdefault(canonicalize_name(name.partition("[")[0]), set()).add(version)
    return found


def _asked_for(extra: str) -> list[Requirement]:
    found = []
    for requirement in map(Requirement, _PROJECT["optional-dependencies"][extra]):
        if requirement.name == _PROJECT["name"]:
            found += [one for inner in requirement.extras for one in _asked_for(inner)]
        else:
            found.append(requirement)
    return found


@pytest.mark.parametrize(("extra", "lock"), [("dev", _DEV), *((role, f"images/locks/{role}.txt") for role in IMAGES)])
def test_a_lock_has_everything_the_extra_asks_for(extra: str, lock: str) -> None:
    locked = _locked(lock)
    for requirement in [*map(Requirement, _PROJECT["dependencies"]), *_asked_for(extra)]:
        versions = locked.get(canonicalize_name(requirement.name), set())
        assert versions, f"{lock} lacks {requirement.name}: run make locks"
        assert all(map(requirement.specifier.contains, versions)), f"{requirement}: {versions}; run make locks"


@pytest.mark.parametrize("role", IMAGES)
def test_an_image_has_the_versions_that_were_tested(role: str) -> None:
    tested = _locked(_DEV)
    if role == "tracking":
        # Libraries of trackers run in an environment of their own.
        for name, version in re.findall(
            r"^([\w.-]+)==(\S+)$", _TRACKERS.read_text(encoding="utf-8"), flags=re.MULTILINE
        ):
            tested.setdefault(canonicalize_name(name), set()).add(version)
    differing = {
        name: versions for name, versions in _locked(f"images/locks/{role}.txt").items() if not versions <= tested[name]
    }
    assert not differing, "run make locks"


def test_the_image_with_sglang_has_the_version_that_was_tested() -> None:
    assert _locked("images/locks/sglang.txt")["sglang"] == {VERSION}


def test_what_builds_the_wheel_is_locked_with_all_that_it_needs() -> None:
    """Code that runs while an image is made is as much in it as what is installed."""
    locked = _locked("images/locks/build.txt")
    for requirement in map(Requirement, _WHOLE["build-system"]["requires"]):
        versions = locked.get(canonicalize_name(requirement.name), set())
        assert versions, f"images/locks/build.txt lacks {requirement.name}: run make locks"
        assert all(map(requirement.specifier.contains, versions)), f"{requirement}: {versions}; run make locks"
    assert {"packaging", "pluggy", "pathspec"} <= set(locked), "hatchling's own"


def test_nothing_is_installed_without_a_digest() -> None:
    """In the Dockerfile and the script that it runs."""
    steps = (ROOT / "images/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    steps += (ROOT / "images/install.sh").read_text(encoding="utf-8").splitlines()
    installing = [step for step in steps if re.search(r"\b(pip install|uv build)\b", step)]
    assert len(installing) == 5
    for step in installing:
        assert "--require-hashes" in step or "--no-deps" in step, step


def test_uv_is_the_one_that_make_install_has() -> None:
    (version,) = re.findall(r"^UV := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert _locked("images/locks/uv.txt") == {"uv": {version}}
