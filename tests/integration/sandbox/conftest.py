"""A sandbox on this machine, where its kernel can have one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.sandbox import a_sandbox
from trimtab.rollout.sandbox.contract import Sandbox


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with a_sandbox() as opened:
        yield opened
