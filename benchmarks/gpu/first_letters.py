"""The task of a random model: say words that begin with a."""

from __future__ import annotations

from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team


class FirstLetters:
    async def run(self, task: Assignment, team: Team, /) -> Episode:
        conversation = team.begin()
        conversation.hear(str(task.column("prompt")))
        said = (await conversation.speak()).split()
        reward = sum(word.startswith("a") for word in said) / max(1, len(said))
        return Episode((ScoredConversation(conversation, reward=reward),))
