"""Ask a language model what to do with a fleet. One call that ends in a proposal or in MaintainerFailed, in time, and
leaves a transcript either way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import anthropic
import msgspec

from trimtab.api.autoscaling import Agent
from trimtab.fabric.logs import REDACTOR
from trimtab.operator.autoscale.agent.case import Case
from trimtab.operator.autoscale.agent.conversation import Conversation
from trimtab.operator.autoscale.agent.failure import Cause, MaintainerFailed
from trimtab.operator.autoscale.agent.proposal import MAX_REASON, AgentProposal, Outcome
from trimtab.operator.autoscale.agent.transcripts import Transcripts

_KEEPING_S = 10.0


async def ask(
    case: Case,
    *,
    settings: Agent,
    client: anthropic.AsyncAnthropic,
    transcripts: Transcripts,
    clock: Callable[[], float] = time.time,
) -> Outcome:
    """The agent's proposal. Raises MaintainerFailed and nothing else."""
    conversation = Conversation(case, settings=settings, client=client, clock=clock)
    begun = clock()
    result = await _result(conversation, settings)
    document = _document(case, settings, conversation, result, begun=begun, ended=clock())
    try:
        name = await _kept(transcripts, case, begun=begun, document=document)
    except (OSError, TimeoutError) as error:
        name = None
        if isinstance(result, AgentProposal):
            result = MaintainerFailed(Cause.TRANSCRIPT, f"the transcript could not be kept: {type(error).__name__}")
    if isinstance(result, MaintainerFailed):
        result.transcript = name
        result.tokens = conversation.tokens
        raise result
    assert name is not None
    return Outcome(proposal=result, tokens=conversation.tokens, transcript=name)


async def _result(conversation: Conversation, settings: Agent) -> AgentProposal | MaintainerFailed:
    try:
        return _redacted(await conversation.run())
    except MaintainerFailed as failure:
        return failure
    except TimeoutError:
        return MaintainerFailed(Cause.DEADLINE, f"no proposal within {settings.timeout_seconds} s")


def _redacted(proposal: AgentProposal) -> AgentProposal:
    """The endpoint knows the key, and could write it into a reason that ends up in the status."""
    return replace(proposal, reason=REDACTOR.text(proposal.reason)[:MAX_REASON])


async def _kept(transcripts: Transcripts, case: Case, *, begun: float, document: bytes) -> str:
    async with asyncio.timeout(_KEEPING_S):
        return await asyncio.to_thread(
            transcripts.keep,
            namespace=case.namespace,
            job=case.job,
            decision_id=case.decision_id,
            at=begun,
            document=document,
        )


def _document(
    case: Case,
    settings: Agent,
    conversation: Conversation,
    result: AgentProposal | MaintainerFailed,
    *,
    begun: float,
    ended: float,
) -> bytes:
    content: dict[str, Any] = {
        "decision": case.decision_id,
        "namespace": case.namespace,
        "job": case.job,
        "model": settings.model,
        "endpoint": settings.base_url,
        "began_at": begun,
        "seconds": ended - begun,
        "tokens": conversation.tokens,
        "exchanges": [
            {**asdict(exchange), "usage": msgspec.structs.asdict(exchange.usage)} for exchange in conversation.exchanges
        ],
        "system": conversation.system,
        "tools": conversation.tools,
        "messages": conversation.messages,
        "outcome": _outcome(result),
    }
    return msgspec.json.format(msgspec.json.encode(REDACTOR.mapping(content)), indent=1)


def _outcome(result: AgentProposal | MaintainerFailed) -> dict[str, Any]:
    if isinstance(result, MaintainerFailed):
        return {"failed": result.cause.value, "text": str(result)}
    return {"targets": dict(result.targets), "victims": result.victims, "reason": result.reason}
