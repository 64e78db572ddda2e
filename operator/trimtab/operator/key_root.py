"""The secret that the keys of jobs are derived from: from the operator's settings, or from a Secret that it makes at
its first start and that stays when the operator goes, as jobs and their checkpoints do.
"""

from __future__ import annotations

import asyncio
import base64
import binascii

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.logs import REDACTOR
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import AlreadyExists, ApiError, KubeError, TooManyRequests
from trimtab.kube.resources import SECRETS, Object
from trimtab.operator.pods.job_keys import InvalidRoot, KeyRoot
from trimtab.operator.settings import JobKeySettings, OwnSecret

ROOT_KEY = "root"
_log = structlog.get_logger(__name__)
_BACKOFF = FullJitter(base_s=1.0, cap_s=30.0)


class RootUnusable(Exception):
    """The root cannot be had as things are; the message says where to look."""


async def open_root(settings: JobKeySettings | None, client: KubeClient) -> KeyRoot | None:
    """None where the operator has none. Raises RootUnusable."""
    if settings is None:
        return None
    text, origin = await _text(settings, client)
    REDACTOR.register([text])
    try:
        return KeyRoot(text)
    except InvalidRoot as error:
        raise RootUnusable(f"{origin}: {error}") from None


async def _text(settings: JobKeySettings, client: KubeClient) -> tuple[str, str]:
    """And where it is from."""
    if settings.root is not None:
        return settings.root.get_secret_value().strip(), "job_keys.root"
    if settings.root_file is not None:
        try:
            return settings.root_file.read_text(encoding="utf-8").strip(), f"job_keys.root_file {settings.root_file}"
        except (OSError, ValueError) as error:
            problem = f"job_keys.root_file: {settings.root_file} cannot be read ({type(error).__name__})"
            raise RootUnusable(problem) from None
    place = settings.secret
    assert place is not None
    encoded = ((await _stored(client, place)).get("data") or {}).get(ROOT_KEY)
    origin = f"Secret {place.name} in namespace {place.namespace}, key {ROOT_KEY}"
    try:
        return base64.b64decode(encoded or "").decode().strip(), origin
    except (binascii.Error, ValueError):
        raise RootUnusable(f"{origin}: it is not text") from None


async def _stored(client: KubeClient, place: OwnSecret) -> Object:
    """The Secret as it is, or as we make it now. An API server that does not answer is waited for."""
    attempt = 0
    while True:
        try:
            return await _found_or_made(client, place)
        except KubeError as error:
            if isinstance(error, ApiError) and not isinstance(error, TooManyRequests) and error.code < 500:
                problem = f"Secret {place.name} in namespace {place.namespace} cannot be had: {error}"
                raise RootUnusable(problem) from None
            _log.warning("key_root_waits_for_api_server", error=str(error))
            await asyncio.sleep(_BACKOFF.delay_s(attempt))
            attempt += 1


async def _found_or_made(client: KubeClient, place: OwnSecret) -> Object:
    found = await client.get_or_none(SECRETS, place.name, namespace=place.namespace)
    if found is not None:
        return found
    try:
        return await client.create(SECRETS, root_secret(place), namespace=place.namespace)
    except AlreadyExists:
        # Another operator was faster: its root counts.
        return await client.get(SECRETS, place.name, namespace=place.namespace)


def root_secret(place: OwnSecret) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": place.name,
            "namespace": place.namespace,
            "labels": {"app.kubernetes.io/part-of": "trimtab", "app.kubernetes.io/component": "job-keys"},
        },
        "type": "Opaque",
        "data": {ROOT_KEY: base64.b64encode(KeyRoot.generate().encode()).decode()},
    }
