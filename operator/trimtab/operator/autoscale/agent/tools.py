"""Serves the tool calls of one answer from the case: pure. A call that makes no sense is answered with what is wrong
with it, so that the model can do better.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from anthropic.types import ToolResultBlockParam
from pydantic import ValidationError

from trimtab.operator.autoscale.agent.case import Case
from trimtab.operator.autoscale.agent.failure import Cause
from trimtab.operator.autoscale.agent.messages import ToolCall
from trimtab.operator.autoscale.agent.proposal import MAX_REASON, AgentProposal
from trimtab.operator.autoscale.agent.tool_inputs import (
    TOOLS,
    ListInstances,
    Propose,
    ReadHistory,
    ReadReport,
    ToolInput,
)
from trimtab.operator.autoscale.agent.views import history_view, instances_view, report_view
from trimtab.operator.untrusted import Names, printable, shown_name

_MAX_CORRECTION = 1500


class Misuse(Exception):
    """A call that makes no sense, and what to tell the model about it."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(printable(text, limit=_MAX_CORRECTION))
        self.cause = cause


@dataclass(frozen=True, kw_only=True)
class Served:
    results: list[ToolResultBlockParam]
    proposal: AgentProposal | None = None
    misuse: Cause | None = None
    """Of the last call that made no sense."""


class Desk:
    def __init__(self, case: Case) -> None:
        self._case = case
        self._policies = Names.of(case.reports)
        self._pools = Names.of(pool.name for pool in case.pools)
        self._instances = Names.of({instance.id for instance in case.instances})

    def serve(self, calls: list[ToolCall]) -> Served:
        """All calls of one answer, because the API wants all their results in one message."""
        several = sum(call.name == Propose.name for call in calls) > 1
        results: list[ToolResultBlockParam] = []
        proposal: AgentProposal | None = None
        misuse: Cause | None = None
        for call in calls:
            try:
                done = self._serve_one(call, several=several)
            except Misuse as wrong:
                misuse = wrong.cause
                results.append(_result(call, str(wrong), is_error=True))
                continue
            if isinstance(done, AgentProposal):
                proposal = done
                results.append(_result(call, "recorded"))
            else:
                results.append(_result(call, done))
        return Served(results=results, proposal=proposal, misuse=misuse)

    def _serve_one(self, call: ToolCall, *, several: bool) -> str | AgentProposal:
        match _input(call):
            case Propose() if several:
                raise Misuse(Cause.SEVERAL_PROPOSALS, "several proposals in one answer: call propose exactly once")
            case Propose() as wish:
                return self._proposal(wish)
            case ReadReport() as asked:
                return report_view(self._case, policies=self._policies_asked(asked.policy))
            case ReadHistory() as asked:
                policies = self._policies_asked(asked.policy)
                return history_view(self._case, policies=policies, windows=asked.windows)
            case ListInstances() as asked:
                pool = None if asked.pool is None else self._pool(asked.pool)
                return instances_view(self._case, pool=pool, skip=asked.skip, limit=asked.limit)
            case other:
                raise AssertionError(f"{other.name} is a tool that nobody serves")

    def _proposal(self, wish: Propose) -> AgentProposal:
        wanted: dict[str, int] = {}
        for target in wish.targets:
            pool = self._pool(target.pool)
            if pool in wanted:
                raise Misuse(Cause.MALFORMED_INPUT, f"targets: pool {shown_name(pool)!r} occurs twice")
            wanted[pool] = target.replicas
        reason = printable(wish.reason, limit=MAX_REASON)
        if not reason:
            raise Misuse(Cause.MALFORMED_INPUT, "reason: has no printable character")
        return AgentProposal(
            targets={pool.name: wanted.get(pool.name, pool.desired) for pool in self._case.pools},
            victims=tuple(dict.fromkeys(self._instance(victim) for victim in wish.victims)),
            reason=reason,
        )

    def _policies_asked(self, shown: str | None) -> tuple[str, ...]:
        if shown is None:
            return tuple(self._case.reports)
        return (_found(self._policies, shown, "policy: {} is not one of the job's; null shows all"),)

    def _pool(self, shown: str) -> str:
        return _found(self._pools, shown, "pool: {} is not one of those that read_report shows")

    def _instance(self, shown: str) -> str:
        return _found(self._instances, shown, "victims: {} is not an id that list_instances shows")


def _found(names: Names, shown: str, text: str) -> str:
    name = names.find(shown)
    if name is None:
        raise Misuse(Cause.UNKNOWN_NAME, text.format(repr(shown_name(shown))))
    return name


def _input(call: ToolCall) -> ToolInput:
    tool = TOOLS.get(call.name)
    if tool is None:
        raise Misuse(
            Cause.UNKNOWN_TOOL, f"there is no tool {shown_name(call.name)!r}; the tools are {', '.join(TOOLS)}"
        )
    try:
        # As JSON, so that strictness is JSON's: 3 is a whole number, "3", 3.5 and true are not.
        return tool.model_validate_json(msgspec.json.encode(call.input))
    except ValidationError as error:
        raise Misuse(Cause.MALFORMED_INPUT, _explained(error)) from None


def _explained(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False)
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'input'}: {problem['msg']}" for problem in problems[:10]
    )


def _result(call: ToolCall, content: str, *, is_error: bool = False) -> ToolResultBlockParam:
    result: ToolResultBlockParam = {"type": "tool_result", "tool_use_id": call.id, "content": content}
    return {**result, "is_error": True} if is_error else result
