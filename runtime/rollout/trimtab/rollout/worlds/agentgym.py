"""A client of AgentGym's environment servers: /create, /reset, /step, /close, in the words of AlfWorld or WebShop."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.rollout.workflows.errors import PromptUnusable
from trimtab.rollout.worlds.exchange import NoSuchPath, WorldServer, WorldServerFailed


@dataclass(frozen=True, kw_only=True)
class _Dialect:
    """What a task's server calls things."""

    episode: str
    """Which of its environments is meant."""
    task: str
    """What to begin with, in /reset."""
    text: str
    """What the policy sees, in an answer."""
    always: Mapping[str, Any] = field(default_factory=dict)
    """In every /reset."""


_DIALECTS = {
    "alfworld": _Dialect(episode="id", task="game", text="observation", always={"world_type": "Text"}),
    "webshop": _Dialect(episode="env_idx", task="session_id", text="state"),
}


class AgentGymEnvironment:
    """`task_column` of the prompt is the number of a game, or of a session of the shop. Where a server says what can be
    done, the policy reads it too, unless `show_actions` is false.
    """

    def __init__(
        self,
        *,
        url: str,
        dialect: str,
        task_column: str = "task",
        timeout_s: float = 60.0,
        show_actions: bool = True,
    ) -> None:
        if dialect not in _DIALECTS:
            raise ValueError(f"dialect is {dialect!r}: one of {', '.join(_DIALECTS)}")
        self._server = WorldServer(url, timeout_s=timeout_s)
        self._dialect = _DIALECTS[dialect]
        self._task_column = task_column
        self._show_actions = show_actions
        self._episode: int | None = None

    async def reset(self, prompt: Mapping[str, Any], /) -> str:
        task = prompt.get(self._task_column)
        if not isinstance(task, int) or isinstance(task, bool):
            raise PromptUnusable(f"column {self._task_column!r} is {task!r:.200}: a number of the server's tasks")
        created = _checked(await self._server.ask("/create", {}, repeatable=True), path="/create")
        # WebShop answers with the number itself.
        episode = created.get(self._dialect.episode) if isinstance(created, dict) else created
        if not isinstance(episode, int):
            raise WorldServerFailed(f"/create answered {created!r:.200}: {self._dialect.episode} is needed")
        self._episode = episode
        body = {self._dialect.episode: episode, self._dialect.task: task, **self._dialect.always}
        began = _checked(await self._server.ask("/reset", body, repeatable=True), path="/reset")
        # WebShop answers with [text, null].
        return self._text(began[0] if isinstance(began, list) and began else began, path="/reset")

    async def step(self, action: str, /) -> tuple[str, float, bool]:
        body = {self._dialect.episode: self._episode, "action": action}
        answer = _checked(await self._server.ask("/step", body, repeatable=False), path="/step")
        reward = answer.get("reward") if isinstance(answer, dict) else None
        done = answer.get("done") if isinstance(answer, dict) else None
        if not isinstance(reward, int | float) or not math.isfinite(reward) or not isinstance(done, bool):
            raise WorldServerFailed(f"/step answered {answer!r:.200}: reward, a number, and done are needed")
        return self._text(answer, path="/step"), float(reward), done

    async def close(self) -> None:
        if self._episode is not None:
            # AlfWorld's first servers keep all episodes.
            with contextlib.suppress(NoSuchPath):
                await self._server.ask("/close", {self._dialect.episode: self._episode}, repeatable=True)

    def _text(self, answer: Any, *, path: str) -> str:
        text = answer.get(self._dialect.text) if isinstance(answer, dict) else answer
        if not isinstance(text, str):
            raise WorldServerFailed(f"{path} answered {answer!r:.200}: {self._dialect.text}, a text, is needed")
        actions = answer.get("available_actions") if isinstance(answer, dict) and self._show_actions else None
        return f"{text}\nAvailable actions: {', '.join(map(str, actions))}\n" if actions else f"{text}\n"


def _checked(answer: Any, *, path: str) -> Any:
    """AlfWorld's server answers 200 also to what it could not do."""
    if isinstance(answer, dict) and "error" in answer:
        raise WorldServerFailed(f"{path}: {answer['error']!r:.500}")
    return answer
