"""The tools of the agent, each a pydantic model: its schema is what the model is shown, and its validation is what the
model's input goes through.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from anthropic.types import ToolParam
from pydantic import BaseModel, ConfigDict, Field

from trimtab.api.scalars import MAX_REPLICAS
from trimtab.operator.autoscale.agent.proposal import MAX_REASON

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
