"""Preempting a pod for a drill: the condition that tells a disruption from a failure, then an eviction."""

from __future__ import annotations

from trimtab.kube.client import KubeClient
from trimtab.kube.resources import PODS
from trimtab.kube.timestamps import timestamp


async def preempt_pod(client: KubeClient, *, namespace: str, name: str, now: float) -> None:
    """The very pod that has the name now, and no other that may take it meanwhile. TooManyRequests: a disruption budget
    does not allow it."""
    pod = await client.get(PODS, name, namespace=namespace)
    uid = pod["metadata"]["uid"]
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "trimtab dev preempt: the place is needed for another pod",
        "lastTransitionTime": timestamp(now),
    }
    await client.patch(
        PODS,
        name,
        {"metadata": {"uid": uid}, "status": {"conditions": [condition]}},
        namespace=namespace,
        subresource="status",
        strategic=True,
    )
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    await client.create(PODS, eviction, namespace=namespace, name=name, subresource="eviction")
