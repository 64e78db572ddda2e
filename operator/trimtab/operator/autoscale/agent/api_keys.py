"""API keys of agent maintainers, read from the Secret that the manifest names when they are needed, and not kept."""

from __future__ import annotations

import base64

from trimtab.api.scalars import SecretKey
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import SECRETS
from trimtab.operator.autoscale.agent.maintainer import KeyMissing


async def read_api_key(client: KubeClient, namespace: str, place: SecretKey) -> str:
    try:
        secret = await client.get_or_none(SECRETS, place.name, namespace=namespace)
    except KubeError as error:
        raise KeyMissing(f"Secret {place.name} cannot be read: {type(error).__name__}") from None
    if secret is None:
        raise KeyMissing(f"there is no Secret {place.name} in namespace {namespace}")
    encoded = (secret.get("data") or {}).get(place.key)
    if encoded is None:
        raise KeyMissing(f"Secret {place.name} has no key {place.key}")
    return base64.b64decode(encoded).decode(errors="replace")
