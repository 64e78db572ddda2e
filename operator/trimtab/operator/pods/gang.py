"""What makes the ranks of a trainer one gang: the gate that they start behind, and the place where they meet.

A quota, a LimitRange or a webhook answers for one pod at a time, and a dry run reserves nothing, so whether a whole
gang fits is known only when all of it is made. So its pods are made behind a scheduling gate, which is harmless: no
node is chosen and nothing runs, and when one rank is refused the others are taken back. The gate is lifted when all are
there. Then they meet at rank 0, which has a stable name in a headless Service of the trainer's. The port depends on the
attempt, so that a rank of an earlier attempt that is slow to die cannot join the new group.

A trainer of one rank starts behind the gate too, because what the status says of an attempt must be written before
anything of it runs: a pod that came and went while no operator looked would leave its number to be used again. It meets
itself on loopback and has no Service.
"""

from __future__ import annotations

import hashlib
from typing import Any

from trimtab.api import labels, names
from trimtab.kube.resources import Object
from trimtab.operator.reconcile.ownership import owned_by

GANG_GATE = "rl.trimtab.dev/gang"
PORT_NAME = "rendezvous"
LOOPBACK = "127.0.0.1"
_FIRST_PORT = 20_000
_PORTS = 10_000


def is_gated(pod: Object) -> bool:
    return any(gate.get("name") == GANG_GATE for gate in pod["spec"].get("schedulingGates") or ())


def lifted(uid: str) -> dict[str, Any]:
    """The strategic merge patch that takes the gate away from this very pod; gates of others stay."""
    return {"metadata": {"uid": uid}, "spec": {"schedulingGates": [{"name": GANG_GATE, "$patch": "delete"}]}}


def rendezvous_host(trainer: str, *, ranks: int) -> str:
    return LOOPBACK if ranks == 1 else f"{names.trainer_pod_name(trainer, 0)}.{trainer}"


def rendezvous_port(uid: str, *, attempt: int) -> int:
    digest = hashlib.sha256(f"{uid}/{attempt}".encode()).digest()
    return _FIRST_PORT + int.from_bytes(digest[:4], "big") % _PORTS


def rendezvous_group(trainer: Object, *, attempt: int) -> str:
    """What ranks of one attempt have in common, for a node where all pods share one network."""
    return f"{trainer['metadata']['uid']}.{attempt}"


def rendezvous_service(trainer: Object, *, job: str) -> Object:
    metadata = trainer["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {labels.JOB: job, labels.OWNER: metadata["name"], labels.ROLE: "trainer"},
            "ownerReferences": owned_by(trainer),
        },
        "spec": {
            "clusterIP": "None",
            # Ranks must find each other before they are ready: they become ready by finding each other.
            "publishNotReadyAddresses": True,
            "selector": {labels.JOB: job, labels.OWNER: metadata["name"], labels.ROLE: "trainer"},
        },
    }
