"""A client of OpenEnv's environment servers, by OpenEnv's own library where it is installed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.rollout.workflows.errors import WorkflowError

try:
    from openenv.core.generic_client import GenericEnvClient
except ImportError as error:
    raise ImportError(
        f"OpenEnv's library is needed in the image of the pool: pip install openenv-core ({error})"
    ) from error


class OpenEnvFailed(WorkflowError):
    """The server or the library raised something, or an answer has not what it should have."""

    kind = "environment-failed"


class OpenEnvEnvironment:
    """What the policy says is the field `action_field` of an action; it reads `text_field` of the observation.
    `reset_columns` of the prompt go into reset(), as the seed does where a server takes one.
    """

    def __init__(
        self,
        *,
        url: str,
        action_field: str,
        text_field: str,
        action: Mapping[str, Any] | None = None,
        reset_columns: Sequence[str] = (),
        timeout_s: float = 60.0,
    ) -> None:
        """`action` are fields that every action has."""
        self._client = GenericEnvClient(base_url=url, connect_timeout_s=timeout_s, message_timeout_s=timeout_s)
        self._action_field = action_field
        self._text_field = text_field
        self._action = dict(action or {})
        self._reset_columns = tuple(reset_columns)

    async def reset(self, prompt: Mapping[str, Any], /) -> str:
        given = {column: prompt[column] for column in self._reset_columns if column in prompt}
        began = await self._client.reset(**given)
        return self._text(began.observation)

    async def step(self, action: str, /) -> tuple[str, float, bool]:
        result = await self._client.step({**self._action, self._action_field: action})
        # An environment that rewards only its end has none before.
        reward = 0.0 if result.reward is None else result.reward
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise OpenEnvFailed(f"the reward is {result.reward!r:.200}: a number is needed")
        return self._text(result.observation), float(reward), bool(result.done)

    async def close(self) -> None:
        await self._client.close()

    def _text(self, observation: Any) -> str:
        text = observation.get(self._text_field) if isinstance(observation, dict) else None
        if not isinstance(text, str):
            has = ", ".join(sorted(observation)) if isinstance(observation, dict) else type(observation).__name__
            raise OpenEnvFailed(f"the observation has no text {self._text_field!r}, but {has}: set text_field")
        return text
