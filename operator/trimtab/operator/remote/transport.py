"""The way to another cluster. Its errors do not say where it dials: the address is part of the kubeconfig, and errors
are logged. And it may be closed under those who use it, as its cluster is given up when it no longer answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp

from trimtab.kube.errors import Unreachable
from trimtab.kube.resources import Object
from trimtab.kube.transport import Request, Transport


class RemoteTransport(Transport):
    async def once(self, request: Request, *, deadline_s: float | None = None) -> Object:
        self._check_open()
        try:
            return await super().once(request, deadline_s=deadline_s)
        except Unreachable as error:
            raise without_address(error) from None

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_s: float) -> AsyncGenerator[aiohttp.StreamReader, None]:
        self._check_open()
        try:
            async with super().stream(request, idle_s=idle_s) as content:
                yield content
        except Unreachable as error:
            raise without_address(error) from None

    def _check_open(self) -> None:
        if not self.is_open:
            raise Unreachable("the cluster was given up meanwhile")


def without_address(error: Unreachable) -> Unreachable:
    """What was asked and what kind of failure it was; the rest may name hosts."""
    return Unreachable(": ".join(str(error).split(": ")[:2]))
