"""A sandbox on this machine, where its kernel can have one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.sandbox import a_sandbox
from trimtab.rollout.sandbox.contract import Sandbox
from trimtab.rollout.sandbox.layers import LayerName

_KERNELS = {
    "all": frozenset[LayerName](),
    "without-namespaces": frozenset({LayerName.NAMESPACES}),
}


@pytest.fixture(params=_KERNELS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """As it is where the kernel, or whoever runs containers on it, has everything, or not."""
    async with a_sandbox(without=_KERNELS[request.param]) as opened:
        yield opened
