"""Which waiting pods this node takes: in order of creation, as long as what they request is free, and the node is
neither cordoned nor tainted against them. Refusals are worded as kube-scheduler words them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from trimtab.devcluster.pod.spec import is_finished, requests
from trimtab.kube.resources import Key, Object, key_of


@dataclass(frozen=True, kw_only=True)
class Placement:
    """`refusal` says why the pod has to wait; None: it is bound."""

    key: Key
    uid: str
    refusal: str | None


def placements(
    pods: Iterable[Object],
    *,
    node: str,
    labels: Mapping[str, str],
    allocatable: Mapping[str, Decimal],
    assumed: Set[str],
    cordoned: bool = False,
    taints: Sequence[Mapping[str, Any]] = (),
) -> list[Placement]:
    """A decision for each pod that waits to be bound. `assumed` are the uids of pods that were bound and may not look
    like it yet."""
    free = dict(allocatable)
    waiting = []
    for pod in pods:
        spec = pod["spec"]
        if spec.get("nodeName") == node or pod["metadata"]["uid"] in assumed:
            if not is_finished(pod):
                _take(free, pod)
        elif (
            not spec.get("nodeName") and not spec.get("schedulingGates") and "deletionTimestamp" not in pod["metadata"]
        ):
            waiting.append(pod)
    decisions = []
    for pod in sorted(waiting, key=lambda pod: (pod["metadata"]["creationTimestamp"], key_of(pod))):
        refusal = _closed(pod, cordoned=cordoned, taints=taints) or _refusal(pod, labels=labels, free=free)
        if refusal is None:
            _take(free, pod)
        decisions.append(Placement(key=key_of(pod), uid=pod["metadata"]["uid"], refusal=refusal))
    return decisions


def _closed(pod: Object, *, cordoned: bool, taints: Sequence[Mapping[str, Any]]) -> str | None:
    if cordoned:
        return "0/1 nodes are available: 1 node(s) were unschedulable."
    tolerations = pod["spec"].get("tolerations") or ()
    for taint in taints:
        if taint.get("effect") != "PreferNoSchedule" and not any(_tolerates(one, taint) for one in tolerations):
            named = f"{{{taint['key']}: {taint.get('value', '')}}}"
            return f"0/1 nodes are available: 1 node(s) had untolerated taint {named}."
    return None


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    exists = toleration.get("operator") == "Exists"
    return (
        toleration.get("effect") in (None, "", taint.get("effect"))
        and (toleration.get("key") == taint["key"] or (exists and not toleration.get("key")))
        and (exists or toleration.get("value", "") == taint.get("value", ""))
    )


def _refusal(pod: Object, *, labels: Mapping[str, str], free: Mapping[str, Decimal]) -> str | None:
    selector = pod["spec"].get("nodeSelector") or {}
    unmet = [f"{name}={value}" for name, value in sorted(selector.items()) if labels.get(name) != value]
    if unmet:
        return f"0/1 nodes are available: 1 node(s) didn't match nodeSelector {', '.join(unmet)}."
    lacking = [
        f"1 Insufficient {name} (requested {_plain(amount)}, free {_plain(free.get(name, Decimal()))})"
        for name, amount in sorted(_with_itself(pod).items())
        if amount > 0 and amount > free.get(name, Decimal())
    ]
    return f"0/1 nodes are available: {', '.join(lacking)}." if lacking else None


def _take(free: dict[str, Decimal], pod: Object) -> None:
    for name, amount in _with_itself(pod).items():
        free[name] = free.get(name, Decimal()) - amount


def _with_itself(pod: Object) -> dict[str, Decimal]:
    return requests(pod) | {"pods": Decimal(1)}


def _plain(amount: Decimal) -> str:
    return f"{amount.normalize():f}"
