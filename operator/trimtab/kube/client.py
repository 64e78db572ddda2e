"""Calls to the API server. Every call has a deadline; only reads are tried again, because a write that got no answer
may have happened, and what to do then only the caller knows.
"""

from __future__ import annotations

import asyncio
import http
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

import aiohttp

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.tls import TlsUnusable
from trimtab.kube.access import AccessError, ClusterAccess
from trimtab.kube.bounded_response import OWN_SERVER, AnswerLimits, checked, checked_items, decoded, read_bounded
from trimtab.kube.errors import (
    Gone,
    KubeError,
    NotFound,
    ServerError,
    TooLarge,
    TooManyRequests,
    Unreachable,
    api_error,
)
from trimtab.kube.resources import Object, Resource

DEADLINE_S = 30.0
_PAGE = 500
_CONNECT_S = 10.0
_READ_BACKOFF = FullJitter(base_s=0.2, cap_s=5.0)
_LIST_FIELDS = ("resourceVersion", "continue")
_WHOLE_OBJECTS = (None, "status")
"""Subresources that are answered with the object itself."""

Propagation = Literal["Background", "Foreground", "Orphan"]
RequestHook = Callable[[str, str, int], None]
"""Told of every answer: verb, plural with subresource, and the HTTP code, 0 when there was none."""


@dataclass(frozen=True, kw_only=True)
class ObjectList:
    items: list[Object]
    resource_version: str
    """Where a watch goes on from this list without a gap."""


@dataclass(frozen=True, kw_only=True)
class _Request:
    verb: str
    method: str
    resource: Resource
    path: str
    subresource: str | None = None
    parameters: Mapping[str, str] | None = None
    body: Any = None
    content_type: str = "application/json"

    @property
    def plural(self) -> str:
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class KubeClient:
    """One connection pool to one cluster, for one event loop."""

    def __init__(
        self,
        access: ClusterAccess,
        *,
        user_agent: str = "trimtab",
        on_request: RequestHook = lambda verb, resource, code: None,
        deadline_s: float = DEADLINE_S,
        backoff: FullJitter = _READ_BACKOFF,
        limits: AnswerLimits = OWN_SERVER,
    ) -> None:
        self.access = access
        self.deadline_s = deadline_s
        self.limits = limits
        self._user_agent = user_agent
        self._on_request = on_request
        self._backoff = backoff
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Unlimited, because watches hold their connections and must not starve the calls.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            headers={
                "User-Agent": self._user_agent,
                "Accept": "application/json",
                # Compression is a processor's work at both ends, and a few bytes could become as many as they like.
                "Accept-Encoding": "identity",
            },
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        # First, so that no request begins on a session that is half closed.
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, subresource: str | None = None
    ) -> Object:
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        request = _Request(verb="get", method="GET", resource=resource, path=path, subresource=subresource)
        return await self._read(request)

    async def get_or_none(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object | None:
        try:
            return await self.get(resource, name, namespace=namespace)
        except NotFound:
            return None

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        page: int = _PAGE,
    ) -> ObjectList:
        """All objects, page by page; the whole is as of one resourceVersion. `deadline_s` holds for each page. A page
        that is too large is asked for again with fewer objects: authors of large ones must not hide all others."""
        path = resource.path(namespace=namespace)
        base = _selectors(label_selector, field_selector)
        items: list[Object] = []
        proceed, smallest = "", False
        while True:
            parameters = {**base, "limit": str(page)} if page else dict(base)
            if proceed:
                parameters["continue"] = proceed
            try:
                answer = await self._read(
                    _Request(verb="list", method="GET", resource=resource, path=path, parameters=parameters)
                )
            except TooLarge:
                if smallest:
                    raise
                page, smallest = max(1, page // 4), page // 4 <= 1
                continue
            except Gone:
                if not proceed:
                    raise
                # The pages took so long that the server forgot their version: once more, in one piece.
                items, proceed, page = [], "", 0
                continue
            items += _with_kind(answer, resource)
            if len(items) > self.limits.objects:
                raise Unreachable(f"list {path}: there are more than {self.limits.objects} objects")
            metadata = answer.get("metadata")
            version, token = (metadata.get(name) if isinstance(metadata, dict) else None for name in _LIST_FIELDS)
            if not isinstance(version, str) or not isinstance(token, str | None) or (token and token == proceed):
                raise Unreachable(
                    f"list {path}: the server sends a list without resourceVersion, or one that never ends"
                )
            proceed = token or ""
            if not proceed:
                return ObjectList(items=items, resource_version=version)

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """An object; with `name` and `subresource` what is posted to one: a binding, an eviction, a token request."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._once(
            _Request(
                verb="create", method="POST", resource=resource, path=path, subresource=subresource, body=dict(body)
            )
        )

    async def replace(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """Conflict when the body's resourceVersion is not the newest."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._once(
            _Request(
                verb="update", method="PUT", resource=resource, path=path, subresource=subresource, body=dict(body)
            )
        )

    async def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        field_manager: str,
        namespace: str | None = None,
        subresource: str | None = None,
        force: bool = True,
    ) -> Object:
        """Server-side apply: create it, or make the fields of the body ours. Without `force`, Conflict where a field is
        another manager's."""
        path = resource.path(namespace=namespace, name=body["metadata"]["name"], subresource=subresource)
        typed = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self._once(
            _Request(
                verb="apply",
                method="PATCH",
                resource=resource,
                path=path,
                subresource=subresource,
                parameters={"fieldManager": field_manager, "force": "true" if force else "false"},
                body=typed,
                content_type="application/apply-patch+yaml",
            )
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        strategic: bool = False,
    ) -> Object:
        """A sequence is a JSON patch; a mapping is a merge patch, or a strategic one that merges lists by key and
        that custom resources do not know."""
        if not isinstance(body, Mapping):
            content_type = "application/json-patch+json"
        else:
            content_type = f"application/{'strategic-merge' if strategic else 'merge'}-patch+json"
        return await self._once(
            _Request(
                verb="patch",
                method="PATCH",
                resource=resource,
                path=resource.path(namespace=namespace, name=name, subresource=subresource),
                subresource=subresource,
                body=body,
                content_type=content_type,
            )
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_s: int | None = None,
        propagation: Propagation | None = None,
    ) -> Object:
        """Conflict when the object is not the one with `uid`, or no longer in `resource_version`."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if given := {field: value for field, value in preconditions.items() if value is not None}:
            options["preconditions"] = given
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if propagation is not None:
            options["propagationPolicy"] = propagation
        path = resource.path(namespace=namespace, name=name)
        return await self._once(_Request(verb="delete", method="DELETE", resource=resource, path=path, body=options))

    async def raw_get(self, path: str) -> Object:
        """A path that is no object's, such as /apis or /version."""
        where = Resource(plural=path.strip("/").replace("/", "-"), kind="")
        return await self._read(_Request(verb="get", method="GET", resource=where, path=path))

    @asynccontextmanager
    async def stream(
        self, resource: Resource, *, namespace: str | None, parameters: Mapping[str, str], idle_s: float
    ) -> AsyncGenerator[aiohttp.StreamReader, None]:
        """A watch's bytes; Unreachable when nothing comes for `idle_s`. See trimtab.kube.watch."""
        path = resource.path(namespace=namespace)
        request = _Request(verb="watch", method="GET", resource=resource, path=path, parameters=parameters)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=idle_s)
        with _as_unreachable(request):
            async with self._send(request, limits=limits) as response:
                await self._check(request, response)
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise Unreachable(f"{request}: the stream is compressed, which was not asked for")
                yield response.content

    async def _read(self, request: _Request) -> Object:
        """Try again what may pass by itself, as long as the deadline allows."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.deadline_s
        attempt = 0
        while True:
            try:
                return await self._once(request, deadline_s=max(0.001, deadline - loop.time()))
            except TooLarge:
                raise  # it will not be smaller the next time
            except (Unreachable, ServerError, TooManyRequests) as error:
                delay = retry_delay_s(error, attempt=attempt, backoff=self._backoff)
                if loop.time() + delay >= deadline:
                    raise
                attempt += 1
                await asyncio.sleep(delay)

    async def _once(self, request: _Request, *, deadline_s: float | None = None) -> Object:
        limit = self.deadline_s if deadline_s is None else deadline_s
        with _as_unreachable(request):
            async with asyncio.timeout(limit), self._send(request) as response:
                await self._check(request, response)
                answer = await self._answer(request, response)
        is_object = request.verb != "list" and request.resource.kind and request.resource.namespaced
        if is_object and request.subresource in _WHOLE_OBJECTS and answer.get("kind") != "Status":
            return checked(answer, call=str(request))
        return answer

    async def _answer(self, request: _Request, response: aiohttp.ClientResponse) -> Object:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise Unreachable(f"{request}: the answer is compressed, which was not asked for")
        body = await read_bounded(response.content.iter_any(), limit=self.limits.answer_bytes, call=str(request))
        return await decoded(body, call=str(request))

    @asynccontextmanager
    async def _send(
        self, request: _Request, *, limits: aiohttp.ClientTimeout | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        if self._session is None:
            raise RuntimeError("the client is not open: use it in `async with`")
        headers = {}
        if self.access.token is not None:
            headers["Authorization"] = f"Bearer {await self.access.token()}"
        data = None
        if request.body is not None:
            data = json.dumps(request.body).encode()
            headers["Content-Type"] = request.content_type
        options: dict[str, Any] = {} if limits is None else {"timeout": limits}
        answered = False
        try:
            async with self._session.request(
                request.method,
                self.access.server + request.path,
                params=dict(request.parameters or {}),
                data=data,
                headers=headers,
                allow_redirects=False,
                ssl=self.access.tls.context(),
                server_hostname=self.access.server_name,
                proxy=self.access.proxy,
                **options,
            ) as response:
                answered = True
                self._on_request(request.verb, request.plural, response.status)
                yield response
        finally:
            if not answered:
                self._on_request(request.verb, request.plural, 0)

    async def _check(self, request: _Request, response: aiohttp.ClientResponse) -> None:
        if response.status < http.HTTPStatus.MULTIPLE_CHOICES:
            return
        try:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes just as the body is complete.
            async with asyncio.timeout(self.deadline_s):
                status = await self._answer(request, response)
        except Unreachable:
            status = {}
        raise api_error(
            status,
            code=response.status,
            call=str(request),
            retry_after_s=_seconds(response.headers.get("Retry-After")),
        )


def retry_delay_s(error: KubeError, *, attempt: int, backoff: FullJitter) -> float:
    """Our backoff, and never sooner than the server asks."""
    asked = getattr(error, "retry_after_s", None)
    return max(backoff.delay_s(attempt), float(asked or 0.0))


@contextmanager
def _as_unreachable(request: _Request) -> Generator[None, None, None]:
    try:
        yield
    except TimeoutError:
        raise Unreachable(f"{request}: no answer within the deadline") from None
    except (ssl.SSLError, TlsUnusable) as error:
        raise Unreachable(f"{request}: TLS failed: {error}") from None
    except AccessError as error:
        raise Unreachable(f"{request}: {error}") from None
    except (aiohttp.ClientError, ConnectionError, ValueError) as error:
        raise Unreachable(f"{request}: {type(error).__name__}: {error}") from None


def _with_kind(answer: Object, resource: Resource) -> list[Object]:
    """Items of a list do not say what they are."""
    named = {"apiVersion": resource.api_version, "kind": resource.kind}
    return [named | item for item in checked_items(answer, call=f"list {resource.plural}")]


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in given.items() if value}


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isdigit() else None
