"""A secret of the operator's own, which others are derived from: from its settings, from a file, or from a Secret that
it makes at its first start. That one has no owner and stays when the operator goes, as jobs and their data do.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
from pydantic import SecretStr

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.logs import REDACTOR
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import AlreadyExists, ApiError, KubeError, TooManyRequests
from trimtab.kube.resources import SECRETS, Object
from trimtab.operator.settings import OwnSecret

_log = structlog.get_logger(__name__)
_BACKOFF = FullJitter(base_s=1.0, cap_s=30.0)


class SecretUnusable(Exception):
    """The secret cannot be had as things are; the message says where to look."""


@dataclass(frozen=True, kw_only=True)
class SecretSource:
    """One of `given`, `file` and `place` is there."""

    setting: str
    """As settings name it, without `_file`."""
    given: SecretStr | None
    file: Path | None
    place: OwnSecret | None
    key: str
    """Of the Secret's data."""
    component: str
    """The Secret's label."""
    made: Callable[[], Mapping[str, str]]
    """The data of a new Secret."""


@dataclass(frozen=True, kw_only=True)
class OwnText:
    text: str
    origin: str
    """For messages."""

    def __repr__(self) -> str:
        return f"OwnText({self.origin})"


async def own_text(source: SecretSource, client: KubeClient) -> OwnText:
    """Known to the logs from here on. Raises SecretUnusable."""
    found = await _found(source, client)
    REDACTOR.register([found.text])
    return found


async def _found(source: SecretSource, client: KubeClient) -> OwnText:
    if source.given is not None:
        return OwnText(text=source.given.get_secret_value().strip(), origin=source.setting)
    if source.file is not None:
        origin = f"{source.setting}_file"
        try:
            return OwnText(text=source.file.read_text(encoding="utf-8").strip(), origin=f"{origin} {source.file}")
        except (OSError, ValueError) as error:
            raise SecretUnusable(f"{origin}: {source.file} cannot be read ({type(error).__name__})") from None
    place = source.place
    assert place is not None
    origin = f"Secret {place.name} in namespace {place.namespace}"
    encoded = ((await _stored(source, place, client)).get("data") or {}).get(source.key)
    if encoded is None:
        raise SecretUnusable(f"{origin} has no key {source.key}; delete it")
    try:
        return OwnText(text=base64.b64decode(encoded).decode().strip(), origin=f"{origin}, key {source.key}")
    except (binascii.Error, ValueError):
        raise SecretUnusable(f"{origin}, key {source.key}: it is not text; delete it") from None


async def _stored(source: SecretSource, place: OwnSecret, client: KubeClient) -> Object:
    """The Secret as it is, or as we make it now. An API server that does not answer is waited for."""
    attempt = 0
    while True:
        try:
            return await _found_or_made(source, place, client)
        except KubeError as error:
            if isinstance(error, ApiError) and not isinstance(error, TooManyRequests) and error.code < 500:
                problem = f"Secret {place.name} in namespace {place.namespace} cannot be had: {error}"
                raise SecretUnusable(problem) from None
            _log.warning("own_secret_waits_for_api_server", secret=place.name, error=str(error))
            await asyncio.sleep(_BACKOFF.delay_s(attempt))
            attempt += 1


async def _found_or_made(source: SecretSource, place: OwnSecret, client: KubeClient) -> Object:
    found = await client.get_or_none(SECRETS, place.name, namespace=place.namespace)
    if found is not None:
        return found
    try:
        return await client.create(SECRETS, new_secret(source, place), namespace=place.namespace)
    except AlreadyExists:
        # Another operator was faster: what it has made counts.
        return await client.get(SECRETS, place.name, namespace=place.namespace)


def new_secret(source: SecretSource, place: OwnSecret) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": place.name,
            "namespace": place.namespace,
            "labels": {"app.kubernetes.io/part-of": "trimtab", "app.kubernetes.io/component": source.component},
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in source.made().items()},
    }
