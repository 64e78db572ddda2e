"""A policy that may use a calculator before it answers."""

from __future__ import annotations

import operator
import re

from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team

_TASK = "{prompt}\nYou may write <calculate>2 + 3</calculate> and read the result. End with the number alone.\n"
_CALL = re.compile(r"<calculate>(.*?)</calculate>", re.DOTALL)
_SUM = re.compile(r"\s*(-?\d{1,9})\s*([-+*])\s*(-?\d{1,9})\s*")
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class ToolAgent:
    def __init__(self, *, max_turns: int = 4) -> None:
        self._max_turns = max_turns

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        conversation = team.begin(max_turns=self._max_turns)
        conversation.hear(_TASK.format(prompt=task.column("prompt")))
        calls, said = 0, ""
        while not conversation.over:
            said = await conversation.speak()
            call = _CALL.search(said)
            if call is None:
                break
            calls += 1
            conversation.hear(f"<result>{calculated(call[1])}</result>\n")
        numbers = re.findall(r"-?\d+", _CALL.sub("", said))
        right = float(numbers[-1:] == [task.column("answer")])
        parts = {"right": right, "calls": float(calls)}
        return Episode((ScoredConversation(conversation, reward=right, reward_parts=parts),))


def calculated(words: str) -> str:
    """The tool. What a model writes is never evaluated as a program here: that is what the sandbox is for."""
    match = _SUM.fullmatch(words)
    if match is None:
        return "cannot be calculated"
    return str(_OPERATORS[match[2]](int(match[1]), int(match[3])))
