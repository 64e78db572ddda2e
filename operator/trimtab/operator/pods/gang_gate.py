"""The scheduling gate that makes a gang's pods one: they are made behind it, and let run when all are there.

A quota, a LimitRange or a webhook answers for one pod at a time, and a dry run reserves nothing, so whether a whole
gang fits is known only when all of it is made. Behind the gate that is harmless: no node is chosen and nothing runs,
and when one rank is refused the others are taken back. A trainer of one rank needs no gate.
"""

from __future__ import annotations

from typing import Any

from trimtab.kube.resources import Object

GANG_GATE = "rl.trimtab.dev/gang"


def is_gated(pod: Object) -> bool:
    return any(gate.get("name") == GANG_GATE for gate in pod["spec"].get("schedulingGates") or ())


def lifted(uid: str) -> dict[str, Any]:
    """The strategic merge patch that takes the gate away from this very pod; gates of others stay."""
    return {"metadata": {"uid": uid}, "spec": {"schedulingGates": [{"name": GANG_GATE, "$patch": "delete"}]}}
