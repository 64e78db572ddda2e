"""Objects in a cluster: as people apply them, as the API server stores them, and all of a running job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.api.complete import complete_job, complete_pool, complete_trainer
from tests.support.operator.forked_operator import prepare
from tests.support.operator.namespaced_operators import namespaced_operators
from tests.support.operator.scene import Scene, tiny_job
from tests.support.template_process import template_process
from trimtab.api.crd import custom_resource_definitions
from trimtab.embedded.kube.assets import control_plane_assets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.settings import environment_for
from trimtab.kube.access import load_access
from trimtab.kube.resources import CONFIG_MAPS, PODS, RLJOBS, ROLLOUT_POOLS, SECRETS, TRAINERS

JOB = "tiny"
_ASIDE, _RUNNING = "aside", "running"
_VOLATILE = ("managedFields", "resourceVersion", "creationTimestamp", "selfLink")


def write(folder: Path, scratch: Path) -> None:
    manifests = [complete_job(), complete_pool(), complete_trainer()]
    with ControlPlane(scratch / "control-plane", assets=control_plane_assets()) as plane:
        plane.install(custom_resource_definitions())
        for namespace in (_ASIDE, _RUNNING):
            plane.kubectl("create", "namespace", namespace)
        listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
        plane.kubectl("-n", _ASIDE, "apply", "--server-side", "-f", "-", stdin=json.dumps(listed))
        shown = plane.kubectl("-n", _ASIDE, "get", "rljobs,rolloutpools,trainers", "-o", "json").stdout
        objects = {
            "applied": manifests,
            "stored": [lasting(found) for found in json.loads(shown)["items"]],
            "running": _running(plane, scratch),
        }
    (folder / "objects.json").write_text(json.dumps(objects, indent=1) + "\n")


def lasting(found: dict[str, Any]) -> dict[str, Any]:
    """Without what every server says anew."""
    metadata = {name: value for name, value in found["metadata"].items() if name not in _VOLATILE}
    return {**found, "metadata": metadata}


def _running(plane: ControlPlane, scratch: Path) -> list[dict[str, Any]]:
    """All objects of a job whose pods are ready."""
    with (
        EmbeddedNatsWithAccounts(scratch / "account-nats") as nats,
        template_process(prepare) as template,
    ):
        environment = {
            name.replace("TRIMTAB_", "TRIMTAB_NATS__", 1): value
            for name, value in environment_for(nats.address).items()
        }
        environment |= {
            "TRIMTAB_NATS_ACCOUNTS__SEED_FILE": str(nats.operator_seed_file),
            "TRIMTAB_OBJECT_STORE__BUCKET": "bucket",
        }
        with namespaced_operators(
            template, plane, namespace=_RUNNING, folder=scratch / "operators", environment=environment
        ) as operator:
            access = load_access(plane.kubeconfig())
            scene = Scene(plane=plane, namespace=_RUNNING, access=access, operator=operator("0"))
            scene.apply(tiny_job(JOB))
            pods = scene.has_pods(f"{JOB}-dataflow-0", f"{JOB}-solver-trainer-0", f"{JOB}-home-rollout-0")
            scene.make_ready(*pods)
            scene.says(TRAINERS, f"{JOB}-solver", "Ready", "RanksReady")
            scene.until(lambda: scene.must_get(RLJOBS, JOB)["status"].get("readyReplicas"), lambda ready: ready == 1)
            kinds = (RLJOBS, TRAINERS, ROLLOUT_POOLS, SECRETS, CONFIG_MAPS, PODS)
            return [
                lasting({"apiVersion": kind.api_version, "kind": kind.kind, **found})
                for kind in kinds
                for found in scene.listed(kind)
                if found["metadata"]["name"].startswith(JOB)
            ]
