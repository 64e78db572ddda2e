"""Where questions to agent maintainers are asked and their answers kept: a model may take minutes to answer, and no
look at a job waits for it.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog

from trimtab.api.autoscaling import Agent
from trimtab.api.scalars import SecretKey
from trimtab.kube.resources import Key
from trimtab.operator.autoscale.agent.answers import Answer, Answered, Unanswered
from trimtab.operator.autoscale.agent.case import Case
from trimtab.operator.autoscale.agent.failure import Cause, MaintainerFailed
from trimtab.operator.autoscale.agent.transcripts import Transcripts

if TYPE_CHECKING:
    from types import ModuleType

_log = structlog.get_logger(__name__)
_AT_ONCE = 4
_SPARE_S = 30.0


class KeyMissing(Exception):
    """There is no such Secret, or no such key in it; the text names both."""


KeyReader = Callable[[str, SecretKey], Awaitable[str]]
"""The API key in a namespace's Secret. Raises KeyMissing."""


class AgentDesk:
    """One question of a job at a time; jobs are told apart by uid."""

    def __init__(self, *, read_key: KeyReader, transcripts: Transcripts, told: Callable[[Key, Answer], None]) -> None:
        """`told` hears of every answer of a job, once."""
        self._read_key = read_key
        self._transcripts = transcripts
        self._told = told
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[str, Answer] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    def answer(self, uid: str) -> Answer | None:
        """The newest."""
        return self._answers.get(uid)

    def put(self, key: Key, uid: str, case: Case, settings: Agent) -> None:
        """Asks, unless something is being asked already: its answer comes first, and may be outdated then."""
        asked = self._asked.get(uid)
        if asked is not None and not asked.done():
            return
        task = asyncio.create_task(self._ask(key, uid, case, settings), name=f"agent of {case.namespace}/{case.job}")
        self._asked[uid] = task

    def forget(self, uid: str) -> None:
        asked = self._asked.pop(uid, None)
        if asked is not None:
            asked.cancel()
        self._answers.pop(uid, None)

    async def close(self) -> None:
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, key: Key, uid: str, case: Case, settings: Agent) -> None:
        async with self._gate:
            answer = await self._answered(case, settings)
        _log.info("agent_answered", namespace=case.namespace, job=case.job, answer=type(answer).__name__)
        self._answers[uid] = answer
        self._told(key, answer)

    async def _answered(self, case: Case, settings: Agent) -> Answer:
        question, asked_at = case.decision_id, case.at
        try:
            async with asyncio.timeout(settings.timeout_seconds + _SPARE_S):
                key = await self._read_key(case.namespace, settings.api_key_secret)
                asking, endpoint = await asyncio.to_thread(_modules)
                async with endpoint.open_client(settings, api_key=key) as client:
                    outcome = await asking.ask(case, settings=settings, client=client, transcripts=self._transcripts)
        except MaintainerFailed as failure:
            return Unanswered(
                question=question,
                asked_at=asked_at,
                cause=failure.cause.value,
                text=str(failure),
                transcript=failure.transcript,
            )
        except KeyMissing as missing:
            return Unanswered(question=question, asked_at=asked_at, cause=Cause.BAD_SETTINGS.value, text=str(missing))
        except TimeoutError:
            return Unanswered(
                question=question, asked_at=asked_at, cause=Cause.DEADLINE.value, text="no answer in time"
            )
        return Answered(question=question, asked_at=asked_at, proposal=outcome.proposal, transcript=outcome.transcript)


def _modules() -> tuple[ModuleType, ModuleType]:
    """Imported when the first job has an agent: the SDK takes seconds, which other operators need not wait for."""
    return (
        importlib.import_module("trimtab.operator.autoscale.agent.ask"),
        importlib.import_module("trimtab.operator.autoscale.agent.endpoint"),
    )
