"""Asks the agent maintainers of jobs and keeps their replies: a model may take minutes, and reconciles do not wait."""

from __future__ import annotations

import asyncio
import base64
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from trimtab.api.autoscaling import Agent
from trimtab.api.scalars import SecretKey
from trimtab.fabric.logs import REDACTOR
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import SECRETS, Key
from trimtab.operator.autoscale.agent.case import Case
from trimtab.operator.autoscale.agent.egress import Egress
from trimtab.operator.autoscale.agent.proposal import AgentReply, Cause, MaintainerFailed, NotProposed, Proposed
from trimtab.operator.autoscale.agent.transcripts import Transcripts

if TYPE_CHECKING:
    from types import ModuleType

_log = structlog.get_logger(__name__)
_AT_ONCE = 256
_AT_ONCE_OF_A_NAMESPACE = 2
"""An endpoint may hang for as long as its manifest says: its namespace waits for it, and no other."""
_SPARE_S = 30.0


class KeyMissing(Exception):
    """There is no such Secret, or no such key in it; the text names both."""


KeyReader = Callable[[str, SecretKey], Awaitable[str]]
"""The API key in a namespace's Secret. Raises KeyMissing."""


@dataclass
class _NamespaceGate:
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE_OF_A_NAMESPACE))
    users: int = 0


class AgentMaintainers:
    """One question of a job at a time; jobs are told apart by uid."""

    def __init__(
        self,
        *,
        read_key: KeyReader,
        transcripts: Transcripts,
        on_reply: Callable[[Key, AgentReply], None],
        egress: Egress,
    ) -> None:
        """`on_reply` is told every reply of a job, once; `egress` says where endpoints may be."""
        self._egress = egress
        self._read_key = read_key
        self._transcripts = transcripts
        self._on_reply = on_reply
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._replies: dict[str, AgentReply] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._gates: dict[str, _NamespaceGate] = {}

    def reply(self, uid: str) -> AgentReply | None:
        """The newest."""
        return self._replies.get(uid)

    def ask(self, key: Key, uid: str, case: Case, settings: Agent) -> None:
        """Asks, unless something is being asked already: its reply comes first, and may be outdated then."""
        asked = self._asked.get(uid)
        if asked is not None and not asked.done():
            return
        task = asyncio.create_task(self._ask(key, uid, case, settings), name=f"agent of {case.namespace}/{case.job}")
        self._asked[uid] = task

    def forget(self, uid: str) -> None:
        asked = self._asked.pop(uid, None)
        if asked is not None:
            asked.cancel()
        self._replies.pop(uid, None)

    async def close(self) -> None:
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, key: Key, uid: str, case: Case, settings: Agent) -> None:
        async with self._turn(key.namespace), self._gate:
            reply = await self._reply_to(case, settings)
        _log.info("agent_replied", namespace=case.namespace, job=case.job, reply=type(reply).__name__)
        self._replies[uid] = reply
        self._on_reply(key, reply)

    @asynccontextmanager
    async def _turn(self, namespace: str) -> AsyncIterator[None]:
        gate = self._gates.setdefault(namespace, _NamespaceGate())
        gate.users += 1
        try:
            async with gate.turns:
                yield
        finally:
            gate.users -= 1
            if not gate.users:
                del self._gates[namespace]

    async def _reply_to(self, case: Case, settings: Agent) -> AgentReply:
        question, asked_at = case.decision_id, case.at
        try:
            async with asyncio.timeout(settings.timeout_seconds + _SPARE_S):
                key = await self._read_key(case.namespace, settings.api_key_secret)
                conversation, endpoint = await asyncio.to_thread(_modules)
                # In what this task says and in nothing else: a key is any text that a tenant likes.
                with REDACTOR.within([key.strip()]):
                    async with endpoint.open_client(settings, api_key=key, egress=self._egress) as client:
                        outcome = await conversation.ask(
                            case, settings=settings, client=client, transcripts=self._transcripts
                        )
        except MaintainerFailed as failure:
            return NotProposed(
                question=question,
                asked_at=asked_at,
                cause=failure.cause.value,
                text=str(failure),
                transcript=failure.transcript,
            )
        except KeyMissing as missing:
            return NotProposed(question=question, asked_at=asked_at, cause=Cause.BAD_SETTINGS.value, text=str(missing))
        except TimeoutError:
            return NotProposed(
                question=question, asked_at=asked_at, cause=Cause.DEADLINE.value, text="no answer in time"
            )
        return Proposed(question=question, asked_at=asked_at, proposal=outcome.proposal, transcript=outcome.transcript)


async def read_api_key(client: KubeClient, namespace: str, where: SecretKey) -> str:
    """Read when it is needed and not kept. Raises KeyMissing."""
    try:
        secret = await client.get_or_none(SECRETS, where.name, namespace=namespace)
    except KubeError as error:
        raise KeyMissing(f"Secret {where.name} cannot be read: {type(error).__name__}") from None
    if secret is None:
        raise KeyMissing(f"there is no Secret {where.name} in namespace {namespace}")
    encoded = (secret.get("data") or {}).get(where.key)
    if encoded is None:
        raise KeyMissing(f"Secret {where.name} has no key {where.key}")
    return base64.b64decode(encoded).decode(errors="replace")


def _modules() -> tuple[ModuleType, ModuleType]:
    """Imported when the first job has an agent: the SDK takes seconds, which other operators need not wait for."""
    return (
        importlib.import_module("trimtab.operator.autoscale.agent.conversation"),
        importlib.import_module("trimtab.operator.autoscale.agent.endpoint"),
    )
