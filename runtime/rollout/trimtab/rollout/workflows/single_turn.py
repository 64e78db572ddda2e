"""One question, one answer, one verifiable reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.rollout.workflows.answer_checks import AnswerKey
from trimtab.rollout.workflows.chat_settings import ChatSettings
from trimtab.rollout.workflows.team import Assignment, Episode, ScoredConversation, Team


class SingleTurn:
    """Asks the prompt and scores the answer.

    `check` is `characters` (the share of the expected characters that are in their place), `exact`, `numeric`, `math`
    or `tests`, with `check_args` of its own (answer_checks.py). Of an answer with reasons, `answer_pattern` finds the
    part that counts: its last match, or the group in it.
    A prompt is text, or a list of chat messages; `chat` says how it is put to a chat model (chat_settings.py).
    """

    def __init__(
        self,
        *,
        prompt_column: str = "prompt",
        answer_column: str = "answer",
        check: str = "characters",
        check_args: Mapping[str, Any] | None = None,
        answer_pattern: str | None = None,
        chat: Mapping[str, Any] | None = None,
    ) -> None:
        self._chat = ChatSettings.of(chat, name="chat")
        self._prompt_column = prompt_column
        self._key = AnswerKey(check=check, column=answer_column, pattern=answer_pattern, arguments=check_args)

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        prompt = task.column(self._prompt_column)
        conversation = team.begin(settings=self._chat)
        conversation.hear(prompt if isinstance(prompt, list) else str(prompt))
        answer = await conversation.speak()
        score = await self._key.score(answer, task, team)
        return Episode((ScoredConversation(conversation, reward=score.value, reward_parts=score.parts),))
