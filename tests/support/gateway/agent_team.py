"""A team whose gateway is real, and whose roles follow scripts: for agents that are run as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.gateway.exchange import Answer, Ask, Piece, Said
from trimtab.rollout.gateway.server import GatewayServer
from trimtab.rollout.workflows.rehearsal import CHARACTERS, Script
from trimtab.rollout.workflows.team import Assignment, Conversation, Role, ScoredConversation, Team

KEY = "the-key-of-this-episode"


@dataclass
class ConversingSession:
    """Every request is a conversation of its own: the role hears the last message, and says its next line."""

    team: Team
    conversations: list[Conversation] = field(default_factory=list)

    async def ask(self, ask: Ask) -> tuple[Answer, ...]:
        conversation = self.team.begin(ask.role)
        self.conversations.append(conversation)
        conversation.hear(ask.messages if isinstance(ask.messages, str) else ask.messages[-1].text)
        text = await conversation.speak()
        said = Said(speaker="assistant", text=text)
        return (
            Answer(
                said=said,
                finish="stop",
                prompt_tokens=len(conversation.token_ids) - len(text),
                completion_tokens=len(text),
                cached_tokens=0,
                version=0,
            ),
        )

    async def stream(self, ask: Ask) -> AsyncIterator[Piece | Answer]:
        for answer in await self.ask(ask):
            yield answer


@dataclass(frozen=True)
class OpenEndpoint:
    url: str
    key: str
    session: ConversingSession

    def scored(self, reward: float) -> Sequence[ScoredConversation]:
        return [ScoredConversation(one, reward=reward) for one in self.session.conversations]


class ScriptedTeam:
    def __init__(self, task: Assignment, scripts: Mapping[str, Script]) -> None:
        sampling = SamplingSettings(max_new_tokens=1 << 16)
        self._roles = {
            name: Role(name=name, policy=name, tokenizer=CHARACTERS, sampler=script, sampling=sampling)
            for name, script in scripts.items()
        }
        self._task = task

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[OpenEndpoint]:
        server = GatewayServer(roles=tuple(self._roles))
        session = ConversingSession(Team(self._roles, self._task))
        async with server.listening() as url, server.admit(session, key=KEY):
            yield OpenEndpoint(url, KEY, session)
