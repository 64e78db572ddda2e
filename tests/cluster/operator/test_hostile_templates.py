"""A template asks for no more than its namespace's Pod Security allows: the API server refuses it, and the status says
so with the fix.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operator.scene import Scene, tiny_job
from trimtab.kube.resources import ROLLOUT_POOLS

_WITHIN_S = 60.0


def _worker(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (_worker(securityContext={"privileged": True, "allowPrivilegeEscalation": True}), "privileged"),
        ({"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}}, "hostPath"),
        pytest.param({"spec": {"hostNetwork": True, "hostPID": True}}, "host namespaces", marks=pytest.mark.slow),
        pytest.param(
            _worker(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "capabilities", marks=pytest.mark.slow
        ),
        pytest.param(
            {"spec": {"securityContext": {"runAsNonRoot": None, "runAsUser": 0}}}, "runAsUser=0", marks=pytest.mark.slow
        ),
    ],
    ids=["privileged", "hostPath", "host", "capabilities", "root"],
)
def test_a_template_gets_no_more_than_the_namespace_allows(scene: Scene, template: dict[str, Any], told: str) -> None:
    scene.plane.kubectl("label", "namespace", scene.namespace, "pod-security.kubernetes.io/enforce=restricted")
    scene.apply(tiny_job(pools=[{"name": "home", "replicas": 1, "template": template}]))
    message = scene.says(ROLLOUT_POOLS, "tiny-home", "Accepted", "PodRefused", timeout_s=_WITHIN_S)
    assert "violates PodSecurity" in message
    assert told in message
    assert "fix: change the template's securityContext" in message
    assert scene.pods("rollout") == {}
    # What asks for nothing of the kind runs on.
    scene.until(lambda: scene.pods("dataflow"), lambda pods: len(pods) == 1, timeout_s=_WITHIN_S)
