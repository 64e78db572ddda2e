"""An environment of the `verifiers` library as a workflow: it asks through the gateway, and its rubric rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trimtab.fabric.wire.trajectory import MAX_REWARD_PARTS
from trimtab.rollout.gateway.budget import budget_of
from trimtab.rollout.workflows.errors import is_kind
from trimtab.rollout.workflows.team import Assignment, Episode, PromptUnusable, Team, WorkflowError

_EXAMPLE, _PROMPT = "example", "prompt"


class EnvironmentFailed(WorkflowError):
    """It or its rubric failed, or its own time was over. What it calls the reward then is none."""

    kind = "environment-failed"


class VerifiersEnvironment:
    """Loads `environment` with `environment_args`, as `verifiers.load_environment` does, once per worker.

    A row of the prompts has `example`, the number of a row of the environment's own data, or is such a row itself, with
    `prompt`, `answer` and `info`. What the rubric measured besides the reward are the reward's parts.
    """

    def __init__(
        self,
        *,
        environment: str,
        environment_args: Mapping[str, Any] | None = None,
        role: str | None = None,
        max_tokens: int | None = None,
        budget: Mapping[str, float] | None = None,
        keep_thoughts: bool = False,
    ) -> None:
        try:
            import verifiers
        except ImportError as error:
            raise ValueError(
                f"environment {environment!r} needs the library verifiers in the image of the pool: pip install "
                f"verifiers ({error})"
            ) from error
        self._environment = verifiers.load_environment(environment, **(environment_args or {}))
        self._name = environment
        self._role = role
        self._sampling = {} if max_tokens is None else {"max_tokens": max_tokens}
        self._budget = budget_of(budget or {})
        self._keep_thoughts = keep_thoughts

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        import openai
        import verifiers

        given = self._row(task)
        opened = team.endpoint(self._role, budget=self._budget, keep_thoughts=self._keep_thoughts)
        async with opened as endpoint:
            # What can be repeated is repeated behind the gateway.
            async with openai.AsyncOpenAI(
                base_url=endpoint.openai_url, api_key=endpoint.key, timeout=task.deadline_s, max_retries=0
            ) as asks:
                client = verifiers.OpenAIChatCompletionsClient(asks)
                ended = await self._environment.run_rollout(
                    given, client, endpoint.model, dict(self._sampling), state_columns=["timed_out"]
                )
            return Episode(tuple(endpoint.scored(self._reward(ended), reward_parts=_parts(ended))))

    def _row(self, task: Assignment) -> dict[str, Any]:
        if _EXAMPLE in task.prompt:
            data = self._environment.get_dataset()
            number = task.prompt[_EXAMPLE]
            if not isinstance(number, int) or not 0 <= number < len(data):
                raise PromptUnusable(f"{_EXAMPLE} is {number!r:.200}: {self._name} has the rows 0 to {len(data) - 1}")
            return dict(data[number])
        if _PROMPT not in task.prompt:
            raise PromptUnusable(
                f"a row for {self._name} has {_EXAMPLE}, the number of a row of its own data, or {_PROMPT}; this has "
                f"{', '.join(sorted(task.prompt)) or 'nothing'}"
            )
        return {"example_id": 0, **task.prompt}

    def _reward(self, ended: Mapping[str, Any]) -> float:
        if ended.get("error") is not None:
            raise EnvironmentFailed(f"{self._name}: {ended.get('error_chain') or ended['error']}")
        if ended.get("timed_out"):
            raise EnvironmentFailed(f"{self._name} did not end within its own time limit")
        reward = ended.get("reward")
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise EnvironmentFailed(f"{self._name}: its rubric gave {reward!r:.200}, which is no reward")
        return float(reward)


def _parts(ended: Mapping[str, Any]) -> dict[str, float]:
    """Those that messages can carry: the names are those of Python functions."""
    measured = {name.lower(): value for name, value in (ended.get("metrics") or {}).items()}
    numbers = {name: float(value) for name, value in sorted(measured.items()) if isinstance(value, int | float)}
    fitting = [name for name, value in numbers.items() if is_kind(name) and math.isfinite(value)]
    return {name: numbers[name] for name in fitting[:MAX_REWARD_PARTS]}
