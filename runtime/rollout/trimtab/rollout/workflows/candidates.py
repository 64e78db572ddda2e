"""Several answers of a role to one question, drawn side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from trimtab.rollout.workflows.chat_settings import ChatSettings
from trimtab.rollout.workflows.solver_verifier import filled
from trimtab.rollout.workflows.team import Assignment, Conversation, PromptUnusable, Team


async def drawn(
    team: Team, role: str, question: str, *, count: int, max_tokens: int | None, settings: ChatSettings
) -> list[tuple[Conversation, str]]:
    """So many conversations, each with what it said."""
    first = team.begin(role, max_tokens=max_tokens, settings=settings)
    first.hear(question)
    conversations = [first, *(first.fork() for _ in range(count - 1))]
    async with asyncio.TaskGroup() as speaking:
        said = [speaking.create_task(conversation.speak()) for conversation in conversations]
    return [(conversation, words.result()) for conversation, words in zip(conversations, said, strict=True)]


def listed(candidates: Sequence[tuple[Conversation, str]], *, text: str) -> str:
    """One `text` for each, with its number from 1 and what was said."""
    return "".join(
        filled(text, number=str(number), candidate=said) for number, (_, said) in enumerate(candidates, start=1)
    )


def problem_of(task: Assignment, *, column: str) -> str:
    """Raises PromptUnusable unless it is text."""
    problem = task.column(column)
    if not isinstance(problem, str):
        raise PromptUnusable(f"column {column!r} is a {type(problem).__name__}: text is needed")
    return problem


def at_least(count: int, least: int, *, name: str) -> int:
    if count < least:
        raise ValueError(f"{name} is {count}: at least {least}")
    return count
