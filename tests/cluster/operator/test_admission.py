"""The webhook at the real API server: kubectl's answers, certificates, and an operator that is away."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import yaml
from cryptography import x509

from tests.support.api.manifests import changed, job, pool
from tests.support.polling import eventually
from trimtab.api.review import review
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.ports import free_ports
from trimtab.kube.access import load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import SECRETS, VALIDATING_WEBHOOKS
from trimtab.operator.admission.certificates import WebhookCertificate
from trimtab.operator.admission.configuration import REVIEW, webhook_configuration
from trimtab.operator.admission.webhook import serve_admission
from trimtab.operator.settings import AdmissionSettings, OwnSecret

BAD = changed(job(), {"spec.policies.0.sampling": {"temperature": 0}})
_YEAR_S = 365 * 86_400.0


def admission_settings(namespace: str, *, port: int) -> AdmissionSettings:
    return AdmissionSettings(
        host="127.0.0.1",
        port=port,
        secret=OwnSecret(name="admission", namespace=namespace),
        server_name="127.0.0.1",
        webhook=namespace,
    )


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncGenerator[KubeClient, None]:
    async with KubeClient(load_access(control_plane.kubeconfig())) as client:
        yield client


@asynccontextmanager
async def webhook(client: KubeClient, namespace: str) -> AsyncGenerator[set[tuple[str, str]], None]:
    """Asked about objects of the namespace, as long as it is open; it yields kinds and results of its answers."""
    (port,) = free_ports(1)
    settings = admission_settings(namespace, port=port)
    body = webhook_configuration(
        namespace, client_config={"url": f"https://127.0.0.1:{port}/{REVIEW}"}, namespaces=[namespace]
    )
    await client.create(VALIDATING_WEBHOOKS, body)
    told_to_stop = asyncio.Event()
    reviews: set[tuple[str, str]] = set()
    serving = asyncio.create_task(
        serve_admission(
            settings,
            client.access,
            client,
            on_review=lambda kind, result: reviews.add((kind, result)),
            told_to_stop=told_to_stop,
        )
    )
    try:
        yield reviews
    finally:
        told_to_stop.set()
        await serving


async def kubectl(control_plane: ControlPlane, *arguments: str, stdin: str = "") -> tuple[int, str]:
    done = await asyncio.to_thread(control_plane.kubectl, *arguments, stdin=stdin, check=False)
    return done.returncode, done.stdout + done.stderr


async def applied(
    control_plane: ControlPlane, namespace: str, manifest: dict[str, object], *options: str
) -> tuple[int, str]:
    arguments = ("apply", "--namespace", namespace, *options, "-f", "-")
    return await kubectl(control_plane, *arguments, stdin=yaml.safe_dump(manifest))


async def test_a_bad_job_is_refused_in_the_words_of_validate_and_accepted_while_the_webhook_is_away(
    control_plane: ControlPlane, client: KubeClient, namespace: str
) -> None:
    async with webhook(client, namespace) as reviews:

        async def refused() -> bool:
            code, text = await applied(control_plane, namespace, BAD, "--dry-run=server")
            (problem,) = review(BAD).problems
            return code != 0 and f"{problem.field}: {problem.message}" in text

        # The API server takes a moment to learn of a webhook.
        await eventually(refused, timeout_s=60)
        code, text = await applied(control_plane, namespace, job())
        assert code == 0, text
        code, text = await applied(control_plane, namespace, changed(job(), {"spec.data.maxStaleness": 0}))
        assert code == 0, text
        assert "Warning: spec.data.maxStaleness: 0 makes training synchronous" in text
        assert reviews == {("RLJob", "refused"), ("RLJob", "allowed"), ("RLJob", "warned")}
    code, text = await applied(control_plane, namespace, changed(BAD, {"metadata.name": "unjudged"}))
    assert code == 0, text


async def test_a_scale_that_auto_will_undo_is_warned_of(
    control_plane: ControlPlane, client: KubeClient, namespace: str
) -> None:
    auto = changed(job(), {"spec.autoscaling": {"mode": "Auto", "maxReplicas": 8}})
    for manifest in (auto, pool()):
        assert (await applied(control_plane, namespace, manifest))[0] == 0
    async with webhook(client, namespace):

        async def warned() -> bool:
            scale = ("scale", "--namespace", namespace, f"rolloutpool/{pool()['metadata']['name']}")
            code, text = await kubectl(control_plane, *scale, "--replicas=5")
            return code == 0 and "Warning: spec.replicas: the autoscaler of RLJob arithmetic sets it" in text

        await eventually(warned, timeout_s=60)


async def test_a_certificate_is_renewed_before_it_ends_and_told_before_it_is_shown(
    client: KubeClient, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = admission_settings(namespace, port=1)
    await client.create(
        VALIDATING_WEBHOOKS, webhook_configuration(namespace, client_config={"url": "https://127.0.0.1"})
    )
    shift = [0.0]
    first, second = (
        WebhookCertificate(client, settings, tmp_path_factory.mktemp(name), clock=lambda: time.time() + shift[0])
        for name in ("first", "second")
    )

    async def authorities() -> list[x509.Certificate]:
        (hook,) = (await client.get(VALIDATING_WEBHOOKS, namespace))["webhooks"]
        return x509.load_pem_x509_certificates(base64.b64decode(hook["clientConfig"]["caBundle"]))

    async def shown() -> bytes:
        stored = await client.get(SECRETS, "admission", namespace=namespace)
        return base64.b64decode(stored["data"]["tls.crt"])

    await first.refresh()
    await second.refresh()
    made = await shown()
    assert len(await authorities()) == 1
    shift[0] = _YEAR_S * 0.9
    await second.refresh()
    await first.refresh()
    renewed = await shown()
    assert renewed != made
    known = await authorities()
    assert len(known) == 2
    for certificate, authority in ((renewed, known[0]), (made, known[1])):
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(authority)
