"""One question, one answer, one verifiable reward."""

from __future__ import annotations

from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team, WorkflowError


class SingleTurn:
    """Asks the prompt and compares the answer with the expected one, character by character.

    The reward is the share of the expected characters that are in their place, so that a nearly right answer is better
    than a wrong one; an answer that is too long or too short loses what is missing or in excess.
    """

    def __init__(self, *, prompt_column: str = "prompt", answer_column: str = "answer") -> None:
        self._prompt_column = prompt_column
        self._answer_column = answer_column

    async def run(self, assignment: Assignment, team: Team) -> Episode:
        try:
            prompt, expected = assignment.prompt[self._prompt_column], assignment.prompt[self._answer_column]
        except KeyError as missing:
            raise WorkflowError(f"the prompt has no column {missing}") from None
        conversation = team.begin()
        conversation.hear(str(prompt))
        answer = await conversation.speak()
        return Episode((ScoredConversation(conversation, reward=share_in_place(answer, str(expected))),))


def share_in_place(answer: str, expected: str) -> float:
    """The share of characters that agree, of the longer of the two."""
    longest = max(len(answer), len(expected))
    if longest == 0:
        return 1.0
    return sum(mine == theirs for mine, theirs in zip(answer, expected, strict=False)) / longest
