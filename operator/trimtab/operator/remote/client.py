"""The client of another cluster. Its errors do not say where it dials: the address is part of the kubeconfig, and
errors are logged. And it may be closed under those who use it, as its cluster is given up when it no longer answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Unreachable
from trimtab.kube.resources import Object, Resource


class RemoteClient(KubeClient):
    async def _once(self, *arguments: Any, **options: Any) -> Object:
        self._check_open()
        try:
            return await super()._once(*arguments, **options)
        except Unreachable as error:
            raise without_address(error) from None

    @asynccontextmanager
    async def stream(
        self, resource: Resource, *, namespace: str | None, parameters: Mapping[str, str], idle_s: float
    ) -> AsyncGenerator[aiohttp.StreamReader, None]:
        self._check_open()
        try:
            async with super().stream(resource, namespace=namespace, parameters=parameters, idle_s=idle_s) as content:
                yield content
        except Unreachable as error:
            raise without_address(error) from None

    def _check_open(self) -> None:
        if self._session is None:
            raise Unreachable("the cluster was given up meanwhile")


def without_address(error: Unreachable) -> Unreachable:
    """What was asked and what kind of failure it was; the rest may name hosts."""
    return Unreachable(": ".join(str(error).split(": ")[:2]))
