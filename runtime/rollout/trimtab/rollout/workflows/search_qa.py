"""A policy searches as often as it likes, reads what was found, and answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.rollout.search.opening import open_search
from trimtab.rollout.search.passages import Search, shown
from trimtab.rollout.workflows.answer_overlap import exact_match, f1
from trimtab.rollout.workflows.chat_settings import ChatSettings
from trimtab.rollout.workflows.solver_verifier import check_placeholders, filled
from trimtab.rollout.workflows.team import Assignment, Episode, PromptUnusable, ScoredConversation, Team, WorkflowError

QUESTION_TEXT = (
    "Answer the question. To look something up, write <search>words to search for</search> and read what is found "
    "between <information> and </information>; do so as often as you need. When you know the answer, write "
    "<answer>the answer in a few words</answer>.\nQuestion: {question}\n"
)
FOUND_TEXT = "\n<information>\n{found}\n</information>\n"
NEITHER_TEXT = "\nWrite <search>words</search> to search, or <answer>words</answer> to answer.\n"
_MEASURES = {"f1": f1, "exact_match": exact_match}
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


class SearchQA:
    """One role, one conversation. A turn counts by its first `<search>` or `<answer>`; what is behind it is not looked
    at, and a turn with neither is told so. Who has not answered within `max_turns` has given no answer: 0.

    `search` is `{corpus: FILE}`, a file of workflow.source, or `{url: …}`. The answer's column holds one text, or a
    list of texts of which any is right.
    """

    def __init__(
        self,
        *,
        search: Mapping[str, Any],
        reward: str = "f1",
        prompt_column: str = "prompt",
        answer_column: str = "answer",
        max_turns: int = 5,
        max_tokens: int | None = None,
        question_text: str = QUESTION_TEXT,
        found_text: str = FOUND_TEXT,
        neither_text: str = NEITHER_TEXT,
        chat: Mapping[str, Any] | None = None,
    ) -> None:
        if reward not in _MEASURES:
            raise ValueError(f"reward is {reward!r}: one of {', '.join(_MEASURES)}")
        if max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}: at least 1")
        self._given = search
        # A corpus beside the manifest is not found before read_from() says where that is.
        waits = isinstance(search.get("corpus"), str) and not Path(search["corpus"]).is_absolute()
        self._search: Search | None = None if waits else open_search(search, folder=Path())
        self._reward = reward
        self._prompt_column = prompt_column
        self._answer_column = answer_column
        self._max_turns = max_turns
        self._max_tokens = max_tokens
        self._question_text = check_placeholders(question_text, name="question_text", placeholders=("question",))
        self._found_text = check_placeholders(found_text, name="found_text", placeholders=("found",))
        self._neither_text = neither_text
        self._chat = ChatSettings.of(chat, name="chat")

    def read_from(self, source: Path) -> None:
        """The folder of workflow.source, where the corpus is."""
        if self._search is None:
            self._search = open_search(self._given, folder=source)

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        if self._search is None:
            raise WorkflowError(
                f"search.corpus {self._given['corpus']} is a path within workflow.source.path, which the job lacks: "
                "set it, or give an absolute path"
            )
        question, known = str(task.column(self._prompt_column)), self._known(task)
        conversation = team.begin(max_turns=self._max_turns, max_tokens=self._max_tokens, settings=self._chat)
        conversation.hear(filled(self._question_text, question=question))
        answer: str | None = None
        searches = 0
        while not (conversation.turns and conversation.over):
            action = _ACTION.search(await conversation.speak())
            if action is None:
                conversation.hear(self._neither_text)
                continue
            if action.group(1) == "answer":
                answer = action.group(2)
                break
            searches += 1
            found = shown(await self._search.find(action.group(2)))
            conversation.hear(filled(self._found_text, found=found))
        parts = {name: 0.0 if answer is None else measure(answer, known) for name, measure in _MEASURES.items()}
        return Episode(
            (
                ScoredConversation(
                    conversation,
                    reward=parts[self._reward],
                    reward_parts={**parts, "searches": float(searches), "answered": float(answer is not None)},
                ),
            )
        )

    def _known(self, task: Assignment) -> list[str]:
        known = task.column(self._answer_column)
        answers = [known] if isinstance(known, str) else known
        if not isinstance(answers, list) or not answers or not all(isinstance(one, str) for one in answers):
            raise PromptUnusable(f"column {self._answer_column!r} is {known!r:.200}: a text, or a list of texts")
        return answers
