"""A gateway with one session, and the two libraries that ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import openai

from trimtab.rollout.gateway.exchange import Session
from trimtab.rollout.gateway.server import GatewayServer

KEY = "a-session-of-its-own"
ROLES = ("planner", "verifier")


@dataclass(frozen=True)
class Served:
    url: str
    server: GatewayServer
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic


@asynccontextmanager
async def served(session: Session, *, key: str = KEY, used: str = KEY, **settings: Any) -> AsyncIterator[Served]:
    """The session has `key`, the libraries use `used`."""
    server = GatewayServer(roles=ROLES, **settings)
    async with (
        server.listening() as url,
        server.admit(session, key=key),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=used, timeout=60) as by_openai,
        anthropic.AsyncAnthropic(base_url=url, api_key=used, timeout=60) as by_anthropic,
    ):
        yield Served(url, server, by_openai, by_anthropic)
