"""The conversation of one decision: the model looks around with tools until it proposes, within a number of rounds and
a budget of tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import anthropic
import msgspec
from anthropic.types import MessageParam, TextBlockParam, ToolResultBlockParam

from trimtab.api.autoscaling import Agent
from trimtab.operator.autoscale.agent.budget import TokenBudget
from trimtab.operator.autoscale.agent.case import Case
from trimtab.operator.autoscale.agent.failure import Cause, MaintainerFailed
from trimtab.operator.autoscale.agent.instructions import LAST_CALL, OPENING, instructions
from trimtab.operator.autoscale.agent.messages import Answer, Usage, tool_calls
from trimtab.operator.autoscale.agent.proposal import AgentProposal
from trimtab.operator.autoscale.agent.request import request_answer
from trimtab.operator.autoscale.agent.tool_inputs import tool_params
from trimtab.operator.autoscale.agent.tools import Desk

MAX_ROUNDS = 8


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request that was answered."""

    at: float
    seconds: float
    max_tokens: int
    stop_reason: str
    usage: Usage


class Conversation:
    def __init__(
        self, case: Case, *, settings: Agent, client: anthropic.AsyncAnthropic, clock: Callable[[], float]
    ) -> None:
        self._desk = Desk(case)
        self._settings = settings
        self._client = client
        self._clock = clock
        self._budget = TokenBudget(settings.max_tokens)
        self.system = instructions(settings)
        self.tools = tool_params()
        self.messages: list[MessageParam] = [{"role": "user", "content": OPENING}]
        self.exchanges: list[Exchange] = []

    @property
    def tokens(self) -> int:
        return self._budget.spent

    async def run(self) -> AgentProposal:
        """Until there is a proposal. Raises TimeoutError when the time is over, MaintainerFailed for all else."""
        async with asyncio.timeout(self._settings.timeout_seconds) as deadline:
            misuse: Cause | None = None
            for rounds_left in reversed(range(MAX_ROUNDS)):
                answer = await self._answer(seconds_left=_until(deadline))
                served = self._desk.serve(tool_calls(answer))
                if served.proposal is not None:
                    return served.proposal
                misuse = served.misuse
                self.messages.append({"role": "user", "content": _reply(served.results, last_call=rounds_left == 1)})
        raise MaintainerFailed(misuse or Cause.TOO_MANY_ROUNDS, f"no usable proposal in {MAX_ROUNDS} answers")

    async def _answer(self, *, seconds_left: float) -> Answer:
        limit = self._budget.answer_limit(new_bytes=self._new_bytes())
        begun = self._clock()
        answer = await request_answer(
            self._client,
            model=self._settings.model,
            max_tokens=limit,
            system=self.system,
            tools=self.tools,
            messages=self.messages,
            timeout_s=seconds_left,
        )
        self._budget.spend(answer.usage)
        self.exchanges.append(
            Exchange(
                at=begun,
                seconds=self._clock() - begun,
                max_tokens=limit,
                stop_reason=answer.stop_reason,
                usage=answer.usage,
            )
        )
        self.messages.append({"role": "assistant", "content": cast(Any, answer.content)})
        return answer

    def _new_bytes(self) -> int:
        """What the next request adds to what the last one's usage counted: all of it, or the newest message."""
        new: Any = self.messages[-1] if self.exchanges else (self.system, self.tools, self.messages)
        return len(msgspec.json.encode(new))


def _reply(results: list[ToolResultBlockParam], *, last_call: bool) -> list[ToolResultBlockParam | TextBlockParam]:
    # Results come first: the API refuses a text before them.
    return [*results, *([TextBlockParam(type="text", text=LAST_CALL)] if last_call else [])]


def _until(deadline: asyncio.Timeout) -> float:
    when = deadline.when()
    assert when is not None
    # A timeout of 0 would mean none to some.
    return max(0.1, when - asyncio.get_running_loop().time())
