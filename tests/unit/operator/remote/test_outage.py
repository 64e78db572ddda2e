"""Why a cluster is out of reach, in words that say what to do and not where it is."""

from __future__ import annotations

import pytest

from trimtab.kube.errors import Forbidden, KubeError, NotFound, ServerError, Unauthorized, Unreachable
from trimtab.operator.remote.outage import outage_by
from trimtab.operator.remote.transport import without_address

REFUSED = "list /api/v1/pods: ClientConnectorError: Cannot connect to host far.example.org:6443 ssl:default"
FORGED = "get /api/v1/pods: ClientConnectorCertificateError: certificate is not valid for 'far.example.org'"


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (Unreachable(REFUSED), "Unreachable", "does not answer"),
        (TimeoutError(), "Unreachable", "does not answer"),
        (Unreachable(FORGED), "Unreachable", "does not prove who it is"),
        (Unreachable("get /x: TLS failed: hostname far.example.org"), "Unreachable", "does not prove who it is"),
        (Unauthorized("far.example.org", code=401), "Unauthorized", "token or certificate"),
        (Forbidden("far.example.org", code=403), "Forbidden", "rbac/remote.yaml"),
        (ServerError("far.example.org", code=503), "Unreachable", "503"),
        (NotFound("far.example.org", code=404), "Unreachable", "404"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_is_said(error: KubeError | TimeoutError, reason: str, words: str) -> None:
    outage = outage_by(error, namespace="guests")
    assert outage.reason == reason
    assert words in outage.message
    assert "example.org" not in outage.message


@pytest.mark.parametrize("text", [REFUSED, FORGED])
def test_errors_keep_what_was_asked_and_lose_where(text: str) -> None:
    told = str(without_address(Unreachable(text)))
    assert "/api/v1/pods: ClientConnector" in told
    assert "example.org" not in told
