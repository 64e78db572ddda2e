"""A workflow whose rows no message of the bus can carry."""

from __future__ import annotations

import numpy as np

from trimtab.fabric.wire.spans import Producer
from trimtab.rollout.workflows.conversation import Heard
from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team


class Huge:
    """Says what others say, and hears `tokens` of noise after it."""

    def __init__(self, *, tokens: int) -> None:
        self.noise: list[int] = np.random.default_rng(0).integers(0, 2**31 - 1, tokens).tolist()

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        conversation = team.begin()
        conversation.hear("ab")
        await conversation.speak()
        conversation.token_ids += self.noise
        conversation.pieces.append(Heard(self.noise, Producer.ENVIRONMENT))
        return Episode((ScoredConversation(conversation, reward=1.0),))
