"""Runs the agent in the worker. A command for every episode takes a second of Python's start each, which is more than
all that this tiny model does.
"""

from __future__ import annotations

import openai
from agent import agent
from rewards import worth

from trimtab.rollout.workflows.team import Assignment, Episode, Team


class InProcess:
    def __init__(self) -> None:
        # One for all: making a client takes longer than an episode. Address and key are those of the episode.
        self._client = openai.AsyncOpenAI(api_key="none", base_url="http://127.0.0.1", timeout=300, max_retries=0)

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        async with team.endpoint() as endpoint:
            client = self._client.with_options(base_url=endpoint.openai_url, api_key=endpoint.key)
            outcome = await agent(client, model=endpoint.model, prompt=task.prompt)
            return Episode(tuple(endpoint.scored(worth(task.prompt, outcome))))
