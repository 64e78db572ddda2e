"""Calls to the API server. Every call has a deadline; only reads are tried again, because a write that got no answer
may have happened, and what to do then only the caller knows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

import aiohttp

from trimtab.fabric.backoff import FullJitter
from trimtab.kube.access import ClusterAccess
from trimtab.kube.bounded_response import OWN_SERVER, AnswerLimits, checked_items
from trimtab.kube.errors import Gone, NotFound, TooLarge, Unreachable
from trimtab.kube.resources import Object, Resource
from trimtab.kube.transport import Request, RequestHook, Transport

DEADLINE_S = 30.0
_PAGE = 500
_READ_BACKOFF = FullJitter(base_s=0.2, cap_s=5.0)
_LIST_FIELDS = ("resourceVersion", "continue")

Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, kw_only=True)
class ObjectList:
    items: list[Object]
    resource_version: str
    """Where a watch goes on from this list without a gap."""


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
        transport: type[Transport] = Transport,
    ) -> None:
        self.access = access
        self.limits = limits
        self._transport = transport(
            access, user_agent=user_agent, on_request=on_request, deadline_s=deadline_s, backoff=backoff, limits=limits
        )

    async def __aenter__(self) -> Self:
        self._transport.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    async def get(
        self, resource: Resource, name: str, *, namespace: str | None = None, subresource: str | None = None
    ) -> Object:
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        request = Request(verb="get", method="GET", resource=resource, path=path, subresource=subresource)
        return await self._transport.read(request)

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
                answer = await self._transport.read(
                    Request(verb="list", method="GET", resource=resource, path=path, parameters=parameters)
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
        return await self._transport.once(
            Request(
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
        return await self._transport.once(
            Request(verb="update", method="PUT", resource=resource, path=path, subresource=subresource, body=dict(body))
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
        return await self._transport.once(
            Request(
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
        return await self._transport.once(
            Request(
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
        return await self._transport.once(
            Request(verb="delete", method="DELETE", resource=resource, path=path, body=options)
        )

    async def raw_get(self, path: str) -> Object:
        """A path that is no object's, such as /apis or /version."""
        where = Resource(plural=path.strip("/").replace("/", "-"), kind="")
        return await self._transport.read(Request(verb="get", method="GET", resource=where, path=path))

    @asynccontextmanager
    async def stream(
        self, resource: Resource, *, namespace: str | None, parameters: Mapping[str, str], idle_s: float
    ) -> AsyncGenerator[aiohttp.StreamReader, None]:
        """A watch's bytes; Unreachable when nothing comes for `idle_s`. See trimtab.kube.watch."""
        path = resource.path(namespace=namespace)
        request = Request(verb="watch", method="GET", resource=resource, path=path, parameters=parameters)
        async with self._transport.stream(request, idle_s=idle_s) as content:
            yield content


def _with_kind(answer: Object, resource: Resource) -> list[Object]:
    """Items of a list do not say what they are."""
    named = {"apiVersion": resource.api_version, "kind": resource.kind}
    return [named | item for item in checked_items(answer, call=f"list {resource.plural}")]


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in given.items() if value}
