"""The shipped manifests are accepted by a real API server, and offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.api.manifest import read_manifest
from trimtab.api.support import unsupported
from trimtab.api.validation import is_ours, problems
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.fabric.pod import read_job

_ROOT = Path(__file__).parents[2]
_MANIFESTS = sorted(str(path.relative_to(_ROOT)) for path in (_ROOT / "examples").glob("*/*.yaml"))


@pytest.mark.parametrize("name", _MANIFESTS)
def test_a_manifest_is_valid_offline_and_asks_for_nothing_that_is_not_done(name: str) -> None:
    for document in read_manifest((_ROOT / name).read_bytes()):
        assert not is_ours(document.value) or problems(document.value) == []
    assert unsupported(read_job(_ROOT / name).spec) == []


@pytest.mark.parametrize("name", _MANIFESTS)
def test_the_api_server_accepts_a_manifest(control_plane: ControlPlane, namespace: str, name: str) -> None:
    applied = control_plane.kubectl(
        "apply", "--server-side", "--dry-run=server", "-n", namespace, "-f", str(_ROOT / name)
    )
    assert "serverside-applied (server dry run)" in applied.stdout
