"""Objects that released versions have stored: the definitions of this version take them whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.control_planes import Kubectl
from tests.support.released.folders import released
from trimtab.api.crd import KINDS
from trimtab.api.validation import problems

MODELS = {kind.name: kind.model for kind in KINDS}
VERSIONS = pytest.mark.parametrize("folder", released(), ids=lambda folder: folder.name)


def _objects(folder: Path, which: str) -> list[dict[str, Any]]:
    objects: list[dict[str, Any]] = json.loads((folder / "objects.json").read_text())[which]
    return [one for one in objects if one["kind"] in MODELS]


def _kept(old: Any, new: Any) -> Any:
    """What `new` says of all that is in `old`: fields that a later version has added are none of its business."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {name: _kept(value, new.get(name)) for name, value in old.items()}
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [_kept(value, now) for value, now in zip(old, new, strict=True)]
    return new


@VERSIONS
def test_a_manifest_of_a_released_version_means_what_it_meant(folder: Path, kubectl: Kubectl, namespace: str) -> None:
    applied, stored = _objects(folder, "applied"), _objects(folder, "stored")
    assert len(applied) == len(stored) == len(MODELS)
    listed = {"apiVersion": "v1", "kind": "List", "items": applied}
    kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=json.dumps(listed))
    for old in stored:
        shown = kubectl("get", old["kind"], old["metadata"]["name"], "-n", namespace, "-o", "json").stdout
        assert _kept(old["spec"], json.loads(shown)["spec"]) == old["spec"], old["kind"]


@VERSIONS
def test_an_object_that_a_released_version_has_stored_is_kept_whole(
    folder: Path, kubectl: Kubectl, namespace: str
) -> None:
    """As the objects of a cluster whose definitions are replaced: with the status that the operator has written."""
    for old in [*_objects(folder, "stored"), *_objects(folder, "running")]:
        assert problems(old) == []
        MODELS[old["kind"]].model_validate(old)
        name, status = old["metadata"]["name"], old.get("status")
        bare = {**old, "metadata": {"name": name, "labels": old["metadata"].get("labels", {})}}
        kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(bare))
        if status is not None:
            patch = json.dumps({"status": status})
            kubectl("patch", old["kind"], name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
        shown = json.loads(kubectl("get", old["kind"], name, "-n", namespace, "-o", "json").stdout)
        assert _kept(old["spec"], shown["spec"]) == old["spec"], name
        assert _kept(status, shown.get("status")) == status, name
