"""The webhook's own certificate: made at the first start, kept in a Secret that all replicas read, renewed in time, and
its authority told to the API server before the certificate is shown.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import random
from collections.abc import Callable
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from trimtab.kube.certificates import CertificateAuthority
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import AlreadyExists, Conflict, KubeError
from trimtab.kube.resources import SECRETS, VALIDATING_WEBHOOKS, Object
from trimtab.operator.settings import AdmissionSettings, OwnSecret

CERTIFICATE, KEY = "tls.crt", "tls.key"
_AUTHORITIES = "ca.crt"
_LIFETIME = datetime.timedelta(days=365)
_RENEWED_BEFORE = _LIFETIME / 3
_LOOK_S = 60.0
_BOTH = 2
"""The authority of the certificate that is shown, and that of the one before, which other replicas may still show."""

Clock = Callable[[], float]
_log = structlog.get_logger(__name__)


class WebhookCertificate:
    """Files for the server, in `folder`. Replicas need not agree who renews: the API server lets one write win."""

    def __init__(self, client: KubeClient, settings: AdmissionSettings, folder: Path, *, clock: Clock) -> None:
        assert settings.secret is not None
        self._client = client
        self._settings = settings
        self._secret: OwnSecret = settings.secret
        self._folder = folder
        self._clock = clock
        self.ready = asyncio.Event()
        """The files are there."""

    async def keep(self) -> None:
        """Until cancelled. What fails is tried again: without us, or with an old certificate, objects are accepted
        unjudged."""
        while True:
            try:
                await self.refresh()
            except KubeError as error:
                _log.warning("webhook_certificate_failed", error=str(error))
            await asyncio.sleep(_LOOK_S * random.uniform(0.8, 1.2))  # noqa: S311 - not for secrets

    async def refresh(self) -> None:
        configuration = await self._client.get_or_none(VALIDATING_WEBHOOKS, self._settings.webhook)
        if configuration is None:
            # As during an uninstall: without it we are not asked.
            _log.warning("webhook_configuration_missing", name=self._settings.webhook)
            return
        stored = await self._client.get_or_none(SECRETS, self._secret.name, namespace=self._secret.namespace)
        files = _files(stored)
        if files is None or self._is_due(files[CERTIFICATE]):
            stored = await self._renewed(stored, files, configuration)
            files = _files(stored)
        else:
            await self._tell(configuration, files[_AUTHORITIES])
        if files is not None:
            self._write(files)
            self.ready.set()

    def _is_due(self, certificate: bytes) -> bool:
        ends = x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
        return self._clock() > ends - _RENEWED_BEFORE.total_seconds()

    async def _renewed(
        self, stored: Object | None, files: dict[str, bytes] | None, configuration: Object
    ) -> Object | None:
        now = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
        authority = CertificateAuthority.create(now=now, valid_for=_LIFETIME)
        server = authority.server(self._settings.server_name, user="trimtab-admission")
        before = [] if files is None else x509.load_pem_x509_certificates(files[_AUTHORITIES])
        known = [one.public_bytes(Encoding.PEM) for one in before][: _BOTH - 1]
        made = {
            CERTIFICATE: server.certificate,
            KEY: server.key,
            _AUTHORITIES: b"".join([authority.pair.certificate, *known]),
        }
        # First, so that no replica ever shows what the API server does not know.
        await self._tell(configuration, made[_AUTHORITIES])
        body = _secret(self._secret, made, stored, owner=configuration)
        try:
            if stored is None:
                return await self._client.create(SECRETS, body, namespace=self._secret.namespace)
            return await self._client.replace(SECRETS, self._secret.name, body, namespace=self._secret.namespace)
        except (AlreadyExists, Conflict):
            # Another replica was faster, and tells of its own at its next look, as we do at ours.
            return await self._client.get_or_none(SECRETS, self._secret.name, namespace=self._secret.namespace)

    async def _tell(self, configuration: Object, authorities: bytes) -> None:
        bundle = base64.b64encode(authorities).decode()
        hooks = configuration.get("webhooks") or []
        if all(hook["clientConfig"].get("caBundle") == bundle for hook in hooks):
            return
        changed = [{"name": hook["name"], "clientConfig": {"caBundle": bundle}} for hook in hooks]
        await self._client.patch(VALIDATING_WEBHOOKS, self._settings.webhook, {"webhooks": changed}, strategic=True)

    def _write(self, files: dict[str, bytes]) -> None:
        """Only what has changed: the server looks at the files, and starts anew."""
        for name in (KEY, CERTIFICATE):
            file = self._folder / name
            if not file.exists() or file.read_bytes() != files[name]:
                partial = self._folder / f".{name}"
                partial.touch(mode=0o600)
                partial.write_bytes(files[name])
                partial.replace(file)


def _files(stored: Object | None) -> dict[str, bytes] | None:
    """None where there is nothing, or not all of it."""
    data = (stored or {}).get("data") or {}
    names = (CERTIFICATE, KEY, _AUTHORITIES)
    return {name: base64.b64decode(data[name]) for name in names} if all(map(data.get, names)) else None


def _secret(place: OwnSecret, files: dict[str, bytes], stored: Object | None, *, owner: Object) -> Object:
    """It goes with the configuration, when the release is uninstalled."""
    metadata = {
        "name": place.name,
        "namespace": place.namespace,
        "labels": {"app.kubernetes.io/part-of": "trimtab", "app.kubernetes.io/component": "admission"},
        "ownerReferences": [
            {
                "apiVersion": VALIDATING_WEBHOOKS.api_version,
                "kind": VALIDATING_WEBHOOKS.kind,
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
            }
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata if stored is None else stored["metadata"],
        "type": "kubernetes.io/tls",
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }
