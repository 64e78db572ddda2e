"""How the ranks of a trainer find each other: rank 0 has a stable name in a headless Service of the trainer's.

A trainer of one rank meets itself on loopback and needs no Service. The port depends on the attempt, so that a rank of
an earlier attempt that is slow to die cannot join the new group.
"""

from __future__ import annotations

import hashlib

from trimtab.api import labels, names
from trimtab.kube.resources import Object
from trimtab.operator.reconcile.ownership import owned_by

PORT_NAME = "rendezvous"
LOOPBACK = "127.0.0.1"
_FIRST_PORT = 20_000
_PORTS = 10_000


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
