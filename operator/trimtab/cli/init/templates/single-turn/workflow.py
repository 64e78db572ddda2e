"""One question, one answer, and what the answer is worth."""

from __future__ import annotations

import re

from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team


class SingleTurn:
    async def run(self, task: Assignment, team: Team, /) -> Episode:
        conversation = team.begin()
        conversation.hear(f"{task.column('prompt')}\n")
        parts = worth(await conversation.speak(), answer=task.column("answer"))
        reward = parts["right"] + 0.1 * parts["brief"]
        return Episode((ScoredConversation(conversation, reward=reward, reward_parts=parts),))


def worth(said: str, *, answer: str) -> dict[str, float]:
    """The last number counts."""
    numbers = re.findall(r"-?\d+", said)
    return {"right": float(numbers[-1:] == [answer]), "brief": float(len(said) < 100)}
