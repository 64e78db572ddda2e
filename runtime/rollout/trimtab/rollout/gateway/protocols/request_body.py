"""Reads what agents send: strictly, within bounds, with errors that name the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from trimtab.rollout.gateway.exchange import Refused

MAX_MESSAGES = 10_000
MAX_TOOLS = 1_000
MAX_CHOICES = 128
_MAX_PROBLEMS = 3
_TAGS = {
    *("system", "developer", "user", "assistant", "tool"),
    *("message", "function_call", "function_call_output", "reasoning"),
    *("text", "refusal", "input_text", "output_text", "thinking", "tool_use", "tool_result"),
}


class FieldRefused(Refused):
    """`field` is the path to what is wrong with the request."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field


class Body(BaseModel):
    """Fields that are not here are refused by name: what is taken and left out would be trained on unnoticed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_fields(cls, given: Any) -> Any:
        """What is null says nothing: libraries that send an answer back fill in all the fields that they know."""
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: value for name, value in given.items() if value is not None or name in known}


def _as_tuple(given: Any) -> Any:
    return (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list) else given


Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
CalledName = Annotated[str, Field(min_length=1, max_length=1024)]
"""As a model wrote it: it may call what does not exist."""
CallId = Annotated[str, Field(min_length=1, max_length=256)]
StopText = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Annotated[tuple[StopText, ...], Field(max_length=16), BeforeValidator(_as_tuple)]
"""One or several."""
TokenLimit = Annotated[int, Field(ge=1, le=2**31 - 1)]
Temperature = Annotated[float, Field(ge=0.0, le=100.0)]
TopP = Annotated[float, Field(gt=0.0, le=1.0)]
TopK = Annotated[int, Field(ge=-1, le=1_000_000)]
MinP = Annotated[float, Field(ge=0.0, le=1.0)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
Schema = dict[str, Any]

Kind = TypeVar("Kind", bound=Body)


def read(kind: type[Kind], body: bytes) -> Kind:
    """Raises FieldRefused."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        first = _path(problems[0]["loc"])
        told = "; ".join(f"{_path(problem['loc'])}: {_why(problem)}" for problem in problems[:_MAX_PROBLEMS])
        more = len(problems) - _MAX_PROBLEMS
        refused = FieldRefused(first, told.removeprefix(f"{first}: ") + (f"; and {more} more" if more > 0 else ""))
    raise refused


def wished(**wishes: Any) -> Mapping[str, Any]:
    """Those that were sent."""
    return {name: value for name, value in wishes.items() if value is not None}


def _path(location: tuple[int | str, ...]) -> str:
    """As the agent wrote it: pydantic adds the kind of thing that it took an element of a list for."""
    shown = [
        part
        for place, part in enumerate(location)
        if not (part in _TAGS and 0 < place < len(location) - 1 and isinstance(location[place - 1], int))
    ]
    return ".".join(map(str, shown)) or "body"


def _why(problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        return "is not supported here, leave it out"
    return str(problem["msg"])
