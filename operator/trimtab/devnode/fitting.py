"""Which waiting pods this node takes: in order of creation, as long as what they request is free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal

from trimtab.devnode.pod_spec import is_finished, requests
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
        refusal = _refusal(pod, labels=labels, free=free)
        if refusal is None:
            _take(free, pod)
        decisions.append(Placement(key=key_of(pod), uid=pod["metadata"]["uid"], refusal=refusal))
    return decisions


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
