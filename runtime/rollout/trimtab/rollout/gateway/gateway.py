"""The gateway of one worker: a server on loopback, and a session with a key of its own for each episode that asks."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trimtab.rollout.gateway.budget import Budget, BudgetLimits
from trimtab.rollout.gateway.server import GatewayServer
from trimtab.rollout.gateway.session import EpisodeSession
from trimtab.rollout.gateway.tally import GatewayMetrics
from trimtab.rollout.workflows.team import ScoredConversation, Team


@dataclass(frozen=True, kw_only=True)
class OpenEndpoint:
    """Implements team.AgentEndpoint while its episode lasts."""

    url: str
    key: str
    role: str | None
    team: Team
    session: EpisodeSession

    @property
    def model(self) -> str:
        return self.team.role(self.role).name

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    def scored(self, reward: float, *, reward_parts: Mapping[str, float] | None = None) -> Sequence[ScoredConversation]:
        return self.session.scored(reward, reward_parts=reward_parts)


class Gateway:
    """Implements team.Gateway for as long as its server listens."""

    def __init__(
        self,
        server: GatewayServer,
        *,
        url: str,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        new_key: Callable[[], str] = lambda: secrets.token_urlsafe(32),
    ) -> None:
        self._server = server
        self._url = url
        self._metrics = metrics
        self._clock = clock
        self._new_key = new_key

    @asynccontextmanager
    async def open(
        self, team: Team, *, role: str | None, budget: BudgetLimits, keep_thoughts: bool
    ) -> AsyncIterator[OpenEndpoint]:
        session = EpisodeSession(
            team, budget=Budget(budget, clock=self._clock), metrics=self._metrics, keep_thoughts=keep_thoughts
        )
        key = self._new_key()
        async with self._server.admit(session, key=key):
            try:
                yield OpenEndpoint(url=self._url, key=key, role=role, team=team, session=session)
            finally:
                session.close()


@asynccontextmanager
async def running_gateway(
    *, roles: Sequence[str], metrics: GatewayMetrics, clock: Callable[[], float]
) -> AsyncIterator[Gateway]:
    server = GatewayServer(roles=roles)
    async with server.listening() as url:
        yield Gateway(server, url=url, metrics=metrics, clock=clock)
