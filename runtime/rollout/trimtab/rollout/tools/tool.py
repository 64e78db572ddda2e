"""What every tool does: words in, words out. A tool that is used wrongly says so; one that fails fails the episode."""

from __future__ import annotations

from typing import Protocol

from trimtab.rollout.sandbox.contract import ProgramLimits, Sandbox
from trimtab.rollout.workflows.errors import WorkflowError

MAX_RESULT_CHARS = 4000
DEFAULT_LIMITS = ProgramLimits()


class ToolFailed(WorkflowError):
    """The tool itself could not do its work. Nobody knows what it would have said."""

    kind = "tool-failed"


class Bench(Protocol):
    """What a tool may use of an episode: a Team is one."""

    @property
    def sandbox(self) -> Sandbox: ...


class Tool(Protocol):
    async def description(self, bench: Bench, /) -> str:
        """What it does and what it is given, in a line."""

    async def use(self, given: str, bench: Bench, /) -> str:
        """What the planner reads of it, a wrong use included. Raises WorkflowError for what is not the planner's."""


def shortened(text: str) -> str:
    """The beginning and the end of what is too long: errors are mostly told at the end."""
    if len(text) <= MAX_RESULT_CHARS:
        return text
    half = MAX_RESULT_CHARS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
