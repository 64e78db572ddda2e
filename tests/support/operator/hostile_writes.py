"""Random writes of a tenant in a namespace of its own, to a real API server."""

from __future__ import annotations

import random

from tests.support.operator.hostile import any_value, hostile, sound
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import ApiError
from trimtab.kube.resources import CONFIG_MAPS, PODS, RLJOBS, ROLLOUT_POOLS, SECRETS, TRAINERS, Object, Resource

KINDS = {resource.kind: resource for resource in (RLJOBS, ROLLOUT_POOLS, TRAINERS, PODS, CONFIG_MAPS)}
_NAMES = 6
_SERVER_MADE = ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")


def _writable(item: Object) -> Object:
    metadata = {name: value for name, value in item["metadata"].items() if name not in _SERVER_MADE}
    return {**item, "metadata": metadata}


async def random_write(client: KubeClient, rng: random.Random, place: str) -> str:
    """One random write. What the server makes of it, in a word."""
    kind, name = rng.choice(tuple(KINDS)), f"bad-{rng.randrange(_NAMES)}"
    resource = KINDS[kind]
    item = _writable(hostile(rng, sound(kind, namespace=place, name=name, version=1)))
    try:
        if rng.random() < 0.15:
            await _spoil_secret(client, rng, place)
        await client.create(resource, item, namespace=place)
    except ApiError as refusal:
        if refusal.reason != "AlreadyExists":
            return "refused"
    except ValueError:
        return "refused"  # no path
    return await _change(client, rng, resource, item, place)


async def _change(client: KubeClient, rng: random.Random, resource: Resource, item: Object, place: str) -> str:
    """Spec and metadata, or the status, or away with it."""
    name = item["metadata"]["name"]
    subresource = "status" if rng.random() < 0.3 and resource is not CONFIG_MAPS else None
    body: Object = {field: item[field] for field in ("metadata", "spec", "status", "data") if field in item}
    try:
        if rng.random() < 0.15:
            await client.delete(resource, name, namespace=place)
        else:
            await client.patch(resource, name, body, namespace=place, subresource=subresource)
    except (ApiError, ValueError):
        return "kept"
    return "changed"


async def _spoil_secret(client: KubeClient, rng: random.Random, place: str) -> None:
    value = rng.choice(("", "&a *a", "a: &x [*x]", "{" * 500, str(any_value(rng))[:1000]))
    secret = {"metadata": {"name": "far"}, "stringData": {"kubeconfig": value.replace("\x00", "")}}
    await client.apply(SECRETS, secret, field_manager="test", namespace=place)
