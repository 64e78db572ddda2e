"""The tools of the agent, and what serves their calls from the case: pure.

Each tool is a pydantic model: its schema is what the model is shown, and its validation is what the model's input goes
through. A call that makes no sense is answered with what is wrong with it, so that the model can do better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec
from anthropic.types import ToolParam, ToolResultBlockParam
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trimtab.api.scalars import MAX_REPLICAS
from trimtab.operator.autoscale.agent.case import Case
from trimtab.operator.autoscale.agent.messages import ToolCall
from trimtab.operator.autoscale.agent.proposal import MAX_REASON, AgentProposal, Cause
from trimtab.operator.autoscale.agent.views import history_view, instances_view, report_view
from trimtab.operator.untrusted import Names, printable, shown_name

_MAX_CORRECTION = 1500
_Name = Annotated[str, Field(min_length=1, max_length=256)]


class ToolInput(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: ClassVar[str]

    @classmethod
    def param(cls) -> ToolParam:
        schema: dict[str, Any] = cls.model_json_schema()
        return {"name": cls.name, "description": schema.pop("description"), "input_schema": schema}


class ReadReport(ToolInput):
    """The newest balance report of each policy, the pools, the limits that hold now, and what the formula recommends.
    Read it first."""

    name = "read_report"

    policy: _Name | None = None
    """Only this policy's report; null for all."""


class ReadHistory(ToolInput):
    """Earlier balance reports, newest first, and the recent decisions."""

    name = "read_history"

    policy: _Name | None = None
    """Only this policy's reports; null for all."""
    windows: Annotated[int, Field(ge=1, le=50)] = 10
    """Reports per policy."""


class ListInstances(ToolInput):
    """The rollout instances, those whose loss costs least first: suspect, not ready, slow."""

    name = "list_instances"

    pool: _Name | None = None
    """Only this pool's; null for all."""
    skip: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Instances to leave out at the beginning, to page on."""
    limit: Annotated[int, Field(ge=1, le=100)] = 40
    """Most instances to list."""


class PoolTarget(BaseModel):
    """The size of one pool."""

    model_config = ToolInput.model_config

    pool: _Name
    """Name of the pool as listed."""
    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
    """Replicas it should have."""


class Propose(ToolInput):
    """Your decision. Call it exactly once; it ends your work. Without targets, everything stays as it is."""

    name = "propose"

    targets: Annotated[list[PoolTarget], Field(max_length=256)]
    """One entry for each pool that should change; pools left out keep their size."""
    victims: Annotated[list[_Name], Field(max_length=1000)] = Field(default_factory=list)
    """Ids, as listed, of instances that should go first when a pool shrinks; may be empty."""
    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON)]
    """Why, in one or two plain sentences with the figures, for the person who runs the job."""


TOOLS: dict[str, type[ToolInput]] = {tool.name: tool for tool in (ReadReport, ReadHistory, ListInstances, Propose)}


def tool_params() -> list[ToolParam]:
    return [tool.param() for tool in TOOLS.values()]


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


class ToolServer:
    """Serves the calls of one conversation."""

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
                raise AssertionError(f"{other.name} is a tool without a server")

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
