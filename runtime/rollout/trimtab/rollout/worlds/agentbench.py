"""A client of AgentBench's task servers: /start_sample, /interact and /cancel of its controller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trimtab.rollout.tokenizer import Message
from trimtab.rollout.workflows.errors import PromptUnusable
from trimtab.rollout.worlds.exchange import WorldServer, WorldServerFailed

_RUNNING = "running"
_ENDS = ("completed", "agent context limit", "agent validation failed", "agent invalid action", "task limit reached")
"""The others, such as `task error`, are the server's own failures, and worth nothing, not even 0."""
_ROLES = {"user": "user", "agent": "assistant"}


class AgentBenchEnvironment:
    """`url` is the controller's, with its /api; `task` is the name under which a worker is registered, and the prompt's
    `index_column` is one of its indices. The reward is `reward_field` of the result: `result` for AlfWorld, `reward`
    for WebShop.
    """

    def __init__(
        self,
        *,
        url: str,
        task: str,
        index_column: str = "index",
        reward_field: str = "result",
        timeout_s: float = 240.0,
    ) -> None:
        self._server = WorldServer(url, timeout_s=timeout_s)
        self._task = task
        self._index_column = index_column
        self._reward_field = reward_field
        self._session: int | None = None

    async def reset(self, prompt: Mapping[str, Any], /) -> list[Message]:
        """The instruction, examples that the server has, and the task."""
        index = prompt.get(self._index_column)
        if not isinstance(index, int | str) or isinstance(index, bool):
            raise PromptUnusable(f"column {self._index_column!r} is {index!r:.200}: an index of {self._task}")
        began = await self._server.ask("/start_sample", {"name": self._task, "index": index}, repeatable=True)
        session = began.get("session_id") if isinstance(began, dict) else None
        if not isinstance(session, int):
            raise WorldServerFailed(f"/start_sample answered {began!r:.200}: session_id is needed")
        self._session = session
        output = _output(began)
        if output["status"] != _RUNNING:
            raise WorldServerFailed(f"{self._task} {index} ended before it began: {output['status']}")
        messages = _messages(output)
        if not messages:
            raise WorldServerFailed(f"{self._task} {index} began without a word: history is empty")
        return messages

    async def step(self, action: str, /) -> tuple[str, float, bool]:
        body = {"session_id": self._session, "agent_response": {"status": "normal", "content": action}}
        output = _output(await self._server.ask("/interact", body, repeatable=False))
        if output["status"] == _RUNNING:
            messages = _messages(output)
            said = next((number for number, message in enumerate(reversed(messages)) if message["role"] != "user"), 0)
            heard = messages[len(messages) - said :]
            return "\n".join(str(message["content"]) for message in heard), 0.0, False
        # The server has forgotten the session.
        self._session = None
        return "", self._reward(output), True

    async def close(self) -> None:
        if self._session is not None:
            await self._server.ask("/cancel", {"session_id": self._session}, repeatable=True)

    def _reward(self, output: Mapping[str, Any]) -> float:
        if output["status"] not in _ENDS:
            raise WorldServerFailed(f"{self._task} ended as {output['status']!r}: {output.get('result')!r:.500}")
        result = output.get("result")
        reward = result.get(self._reward_field) if isinstance(result, dict) else None
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            known = ", ".join(sorted(result)) if isinstance(result, dict) else repr(result)[:200]
            raise WorldServerFailed(f"the result has no number {self._reward_field!r}, but {known}: set reward_field")
        return float(reward)


def _output(answer: Any) -> Mapping[str, Any]:
    output = answer.get("output") if isinstance(answer, dict) else None
    if not isinstance(output, dict) or not isinstance(output.get("status"), str):
        raise WorldServerFailed(f"the server answered {answer!r:.200}: output with a status is needed")
    return output


def _messages(output: Mapping[str, Any]) -> list[Message]:
    history = output.get("history") or []
    try:
        return [{"role": _ROLES[message["role"]], "content": str(message["content"])} for message in history]
    except (KeyError, TypeError):
        raise WorldServerFailed(f"history is {history!r:.200}: messages with role user or agent are needed") from None
