"""A sandbox for the tests of a module: opening one takes longer than what is run in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.sandbox import a_sandbox
from trimtab.rollout.sandbox.contract import Sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with a_sandbox() as opened:
        yield opened
