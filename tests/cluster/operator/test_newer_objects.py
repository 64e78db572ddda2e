"""Objects of a newer version, which the operator cannot read: it says so and goes on with the others."""

from __future__ import annotations

import json

import pytest

from tests.support.operator.scene import Scene, tiny_job
from trimtab.kube.resources import RLJOBS

_PATH = ("pools", "items", "properties", "engine", "properties", "name", "enum", "-")
_ENUM = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/" + "/".join(_PATH)


@pytest.mark.slow
def test_what_cannot_be_read_is_said_and_left_alone(scene: Scene) -> None:
    patch = [{"op": "add", "path": _ENUM, "value": "oracle"}]
    scene.plane.kubectl("patch", "crd", "rljobs.rl.trimtab.dev", "--type=json", "-p", json.dumps(patch))
    newer = tiny_job("newer", pools=[{"name": "home", "engine": {"name": "oracle"}}])

    def is_taken() -> str:
        """The server takes a moment to notice its new schema."""
        done = scene.plane.kubectl("-n", scene.namespace, "apply", "-f", "-", stdin=json.dumps(newer), check=False)
        return done.stderr

    scene.until(is_taken, lambda complaint: not complaint)
    message = scene.says(RLJOBS, "newer", "Accepted", "Unreadable")
    assert "spec.pools.0.engine.name" in message
    scene.apply(tiny_job("older"))
    scene.until(scene.pods, lambda pods: len(pods) == 3)
    scene.until(lambda: scene.reasons("newer"), lambda reasons: "Unreadable" in reasons)
    scene.kubectl("delete", "rljob", "newer", "--timeout=300s")
