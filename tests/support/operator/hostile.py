"""Objects as a tenant who means harm would write them: sound ones, with anything at all in some of their places."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from tests.support.operator.scene import tiny_job
from trimtab.api import labels
from trimtab.api.model import API_VERSION
from trimtab.operator.plan.children import COVERS
from trimtab.operator.reconcile.placement import ANNOTATION, FINALIZER

Object = dict[str, Any]

_TEXTS = (
    "", "a", "²", "٣", "-1", "9" * 5000, "1e309", "NaN", "null", "true", "[]", "{}", "../../x", "x?y=z", "a/b", "\0",
    "\u202e", "ü" * 300, "x" * 70_000, "2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "${x}", "$(x)", "{{x}}", "*a",
    "<<", "kube-system", "default", "tiny", "bad-0", "Running", "Failed", "True", "Unknown",
)  # fmt: skip
_NUMBERS = (0, -1, 1, 2**31, 2**63 - 1, -(2**63), 10**400, 0.1, -0.0, 1e308)
_WRITTEN = (ANNOTATION, COVERS, labels.VICTIMS, labels.AUTOSCALED_REPLICAS, labels.APPLIED_REPLICAS, labels.JOB)
_PLACEMENT = {"home": "tenant-0", "secret": "far", "key": "kubeconfig", "namespace": "there"}


def any_value(rng: random.Random, *, depth: int = 0) -> Any:
    """Plain JSON, now and then with nothing plain about it."""
    kind = rng.random()
    if kind < 0.35 or depth > 4:
        return rng.choice(_TEXTS)
    if kind < 0.5:
        return rng.choice(_NUMBERS)
    if kind < 0.6:
        return rng.choice((None, True, False))
    if kind < 0.8:
        return [any_value(rng, depth=depth + 1) for _ in range(rng.randrange(4))]
    return {_key(rng): any_value(rng, depth=depth + 1) for _ in range(rng.randrange(4))}


def _key(rng: random.Random) -> str:
    known = ("name", "type", "status", "spec", "containers", "replicas", "kind", "uid", "controller", "conditions")
    return rng.choice(known) if rng.random() < 0.7 else rng.choice(_TEXTS)


def sound(kind: str, *, namespace: str, name: str, version: int) -> Object:
    metadata: Object = {
        "namespace": namespace,
        "name": name,
        "uid": f"uid-{kind}-{namespace}-{name}",
        "resourceVersion": str(version),
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    owner = {
        "apiVersion": API_VERSION,
        "kind": "RolloutPool",
        "name": name,
        "uid": f"uid-RolloutPool-{namespace}-{name}",
    }
    made: dict[str, Callable[[], Object]] = {
        "RLJob": lambda: {"spec": tiny_job()["spec"], "status": _status("Accepted", "Ready", "Succeeded")},
        "RolloutPool": lambda: {
            "spec": {"jobRef": {"name": name}, "replicas": 1},
            "status": {"replicas": 1, "readyReplicas": 0, **_status("Accepted", "Ready", "Reachable")},
        },
        "Trainer": lambda: {
            "spec": {"jobRef": {"name": name}, "policy": "solver", "replicas": 1},
            "status": _status("Accepted", "Ready"),
        },
        "Pod": lambda: {
            "spec": {"containers": [{"name": "worker", "image": "i"}], "nodeName": "n"},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "containerStatuses": [{"name": "worker", "state": {"terminated": {"exitCode": 1}}, "restartCount": 1}],
            },
        },
        "ConfigMap": lambda: {"data": {"job.yaml": "{}"}},
    }
    if kind in ("Pod", "ConfigMap"):
        metadata["ownerReferences"] = [{**owner, "controller": True}]
        metadata["labels"] = {labels.JOB: name, labels.OWNER: name, labels.ROLE: "rollout", labels.ATTEMPT: "1"}
    return {"apiVersion": API_VERSION if kind in ("RLJob", "RolloutPool", "Trainer") else "v1", "kind": kind} | {
        "metadata": metadata,
        **made[kind](),
    }


def _status(*conditions: str) -> Object:
    entry = {"status": "True", "reason": "Fine", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {"conditions": [{"type": kind, **entry} for kind in conditions]}


def hostile(rng: random.Random, item: Object) -> Object:
    """A copy with something in a few places. What names it stays, most of the time."""
    made = copy.deepcopy(item)
    for _ in range(rng.randrange(1, 5)):
        way = rng.random()
        if way < 0.3:
            annotations = made["metadata"].setdefault("annotations", {})
            if isinstance(annotations, dict):
                annotations[rng.choice(_WRITTEN)] = _annotation(rng, made["metadata"].get("namespace"))
        elif way < 0.4:
            field = rng.choice(("labels", "finalizers", "ownerReferences", "deletionTimestamp", "annotations", "uid"))
            sane = {"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z", "labels": {labels.JOB: "x"}}
            made["metadata"][field] = sane[field] if field in sane and rng.random() < 0.5 else any_value(rng)
        else:
            _spoil(rng, made, rng.choice(("spec", "spec", "status", "data")))
    return made


def _annotation(rng: random.Random, namespace: object) -> str:
    way = rng.random()
    if way < 0.3:
        return json.dumps({**_PLACEMENT, "home": namespace})
    if way < 0.6:
        return json.dumps({**_PLACEMENT, rng.choice(tuple(_PLACEMENT)): any_value(rng)}, default=str)
    return rng.choice(_TEXTS) if way < 0.8 else json.dumps(any_value(rng), default=str)


def _spoil(rng: random.Random, item: Object, section: str) -> None:
    """Replaces, adds or removes something somewhere below."""
    if section not in item or rng.random() < 0.03:
        item[section] = any_value(rng)
        return
    place: Any = item[section]
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place))) if isinstance(place, list) else []
        if not keys:
            if isinstance(place, dict):
                place[_key(rng)] = any_value(rng)
            return
        key = rng.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.75:
            place = inner
            continue
        if rng.random() < 0.2 and isinstance(place, dict):
            del place[key]
        else:
            place[key] = any_value(rng)
        return
