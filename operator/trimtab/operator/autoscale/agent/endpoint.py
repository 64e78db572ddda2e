"""A client of the Messages API that trusts the endpoint with the key and with nothing else: the author of a manifest
chooses the endpoint, and one operator serves many of them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import anthropic
import httpx2

from trimtab.api.autoscaling import Agent
from trimtab.operator.autoscale.agent.egress import Egress
from trimtab.operator.autoscale.agent.proposal import Cause, MaintainerFailed

_ANTHROPIC = "https://api.anthropic.com"
_RETRIES = 2
_MAX_ANSWER_BYTES = 512 << 10
_SHORTEST_KEY = 16
_FEWEST_CHARACTERS = 8
"""Different ones. A word would be taken out of everything that is logged about the job."""
_PORTS = {"http": 80, "https": 443}
_WAIT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def open_client(settings: Agent, *, api_key: str, egress: Egress) -> anthropic.AsyncAnthropic:
    """Close it after use. Taking the key out of logs and transcripts is the caller's business."""
    key = api_key.strip()
    if not (key.isascii() and key.isprintable() and len(key) >= _SHORTEST_KEY and len(set(key)) >= _FEWEST_CHARACTERS):
        raise MaintainerFailed(
            Cause.BAD_SETTINGS,
            f"key {settings.api_key_secret.key!r} of Secret {settings.api_key_secret.name!r} is not an API key: it "
            f"must be one line of printable ASCII, of {_SHORTEST_KEY} characters or more and {_FEWEST_CHARACTERS} "
            "different ones",
        )
    try:
        return anthropic.AsyncAnthropic(
            api_key=key,
            # Named even where it is the default: the environment of the operator must not redirect a job's key.
            base_url=settings.base_url or _ANTHROPIC,
            max_retries=_RETRIES,
            # Spans would carry the conversation to wherever the operator's traces go.
            open_telemetry=False,
            http_client=httpx2.AsyncClient(
                transport=_CheckedTransport(egress),
                # No proxy and no netrc of the operator's environment: what is dialled is what was checked.
                trust_env=False,
                # A redirect would take the key along.
                follow_redirects=False,
                headers={"accept-encoding": "identity"},
                event_hooks={"response": [_bound]},
            ),
        )
    except httpx2.InvalidURL:
        raise MaintainerFailed(Cause.BAD_SETTINGS, "agent.baseUrl is not a URL") from None


class _CheckedTransport(httpx2.AsyncHTTPTransport):
    """Dials addresses that `egress` has judged, in the name that the certificate has to be for."""

    def __init__(self, egress: Egress) -> None:
        super().__init__()
        self._egress = egress

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.host
        port = request.url.port or _PORTS[request.url.scheme]
        *others, last = await self._egress.addresses(host, port)
        for address in others:
            try:
                return await super().handle_async_request(_dialling(request, address))
            except httpx2.ConnectError:
                continue
        return await super().handle_async_request(_dialling(request, last))


def _dialling(request: httpx2.Request, address: str) -> httpx2.Request:
    extensions = {**request.extensions, "sni_hostname": request.url.host}
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions=extensions,
    )


async def _bound(response: httpx2.Response) -> None:
    """Before the body is read, also that of an error, and before the SDK looks at the headers: some character sets and
    dates make it raise what no caller expects, and compression would get around the bound."""
    response.headers = httpx2.Headers({"content-type": "application/json", **_waits(response.headers)})
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Bounded(response.stream)


def _waits(headers: httpx2.Headers) -> dict[str, str]:
    """How long to wait before the next try, where that is a number."""
    asked = {name: headers.get(name, "") for name in ("retry-after", "retry-after-ms")}
    return {name: value for name, value in asked.items() if _WAIT.fullmatch(value)}


class _Bounded(httpx2.AsyncByteStream):
    """An endless answer must not fill the operator's memory."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for chunk in self._stream:
            received += len(chunk)
            if received > _MAX_ANSWER_BYTES:
                raise httpx2.ReadError(f"an answer of more than {_MAX_ANSWER_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
