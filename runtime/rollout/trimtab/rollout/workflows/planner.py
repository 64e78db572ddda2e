"""A planner chooses tools step by step, an executor uses them, and a verifier judges the answer that it comes to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.rollout.phases import TOOLS, phase
from trimtab.rollout.tools.opening import needs_folder, open_tools
from trimtab.rollout.tools.tool import Tool
from trimtab.rollout.workflows.answer_checks import AnswerKey
from trimtab.rollout.workflows.chat_settings import ChatSettings
from trimtab.rollout.workflows.run_memory import RunMemory
from trimtab.rollout.workflows.solver_verifier import check_placeholders, filled
from trimtab.rollout.workflows.team import (
    Assignment,
    Conversation,
    Episode,
    PromptUnusable,
    ScoredConversation,
    Team,
    WorkflowError,
)

PLANNER_TEXT = (
    "{problem}\n\nSolve it step by step. In each step use one tool, by its name: <name>what it is to do</name>. There "
    "are:\n{tools}\nWhen you know the answer, write <answer>the answer</answer>.\n"
)
RESULT_TEXT = "\nResult:\n{result}\n"
NEITHER_TEXT = "\nThat is neither a tool nor an answer.\n"
REJECTED_TEXT = "\nA verifier rejected this answer:\n{feedback}\n\nGo on.\n"
EXECUTOR_TEXT = (
    "Problem:\n{problem}\n\nSo far:\n{memory}\n\nThe tool {tool} {description}.\nWrite what to give to it, within one "
    "block fenced by ```, for this step:\n{step}\n"
)
VERIFIER_TEXT = (
    "Problem:\n{problem}\n\nWhat was done:\n{memory}\n\nProposed answer:\n{answer}\n\nIs it right? Say what is wrong "
    "with it. End with ACCEPT or REJECT.\n"
)
_ACCEPT, _REJECT = "ACCEPT", "REJECT"
_VERDICT = re.compile(f"{_ACCEPT}|{_REJECT}")
_FENCED = re.compile(r"```[a-z]*\n?(.*?)```", re.DOTALL)


class Planner:
    """The roles `planner`, `verifier` and, with `executor: true`, `executor`. The planner has one conversation; the
    others have one for each step or answer, and read in it the memory of the run.

    Without an executor the planner itself writes what a tool is given. It has `max_steps` for tools and answers
    together. Planner and executor are rewarded for the last answer, the verifier by the share of its verdicts that were
    right; one that cannot be read is wrong, and rejects.
    """

    def __init__(
        self,
        *,
        tools: Mapping[str, Any],
        executor: bool = False,
        max_steps: int = 6,
        max_tokens: int | None = None,
        memory_chars: int = 8000,
        prompt_column: str = "prompt",
        answer_column: str = "answer",
        check: str = "math",
        answer_pattern: str | None = None,
        planner_text: str = PLANNER_TEXT,
        result_text: str = RESULT_TEXT,
        neither_text: str = NEITHER_TEXT,
        rejected_text: str = REJECTED_TEXT,
        executor_text: str = EXECUTOR_TEXT,
        verifier_text: str = VERIFIER_TEXT,
        planner_chat: Mapping[str, Any] | None = None,
        executor_chat: Mapping[str, Any] | None = None,
        verifier_chat: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (("max_steps", max_steps), ("memory_chars", memory_chars)):
            if value < 1:
                raise ValueError(f"{name} is {value}: at least 1")
        self.roles = ("planner", "executor", "verifier") if executor else ("planner", "verifier")
        self._executor = executor
        self._given = tools
        # Files beside the manifest are not found before read_from() says where that is.
        self._tools: dict[str, Tool] | None = None if needs_folder(tools) else open_tools(tools, folder=Path())
        self._action = re.compile(rf"<({'|'.join(map(re.escape, (*tools, 'answer')))})>(.*?)</\1>", re.DOTALL)
        self._max_steps = max_steps
        self._max_tokens = max_tokens
        self._memory_chars = memory_chars
        self._prompt_column = prompt_column
        self._key = AnswerKey(check=check, column=answer_column, pattern=answer_pattern)
        self._planner_text = check_placeholders(planner_text, name="planner_text", placeholders=("problem",))
        self._result_text = check_placeholders(result_text, name="result_text", placeholders=("result",))
        self._neither_text = neither_text
        self._rejected_text = rejected_text
        self._executor_text = check_placeholders(executor_text, name="executor_text", placeholders=("step",))
        self._verifier_text = check_placeholders(verifier_text, name="verifier_text", placeholders=("answer",))
        self._planner_chat = ChatSettings.of(planner_chat, name="planner_chat")
        self._executor_chat = ChatSettings.of(executor_chat, name="executor_chat")
        self._verifier_chat = ChatSettings.of(verifier_chat, name="verifier_chat")

    def read_from(self, source: Path) -> None:
        """The folder of workflow.source, where the files of tools are."""
        if self._tools is None:
            self._tools = open_tools(self._given, folder=source)

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        problem = task.column(self._prompt_column)
        if not isinstance(problem, str):
            raise PromptUnusable(f"column {self._prompt_column!r} is a {type(problem).__name__}: text is needed")
        tools = self._opened()
        planner = team.begin(
            "planner", max_turns=self._max_steps, max_tokens=self._max_tokens, settings=self._planner_chat
        )
        listed = "\n".join([f"{name}: {await tool.description(team)}" for name, tool in tools.items()])
        planner.hear(filled(self._planner_text, problem=problem, tools=listed))
        memory = RunMemory(self._memory_chars)
        others: list[Conversation] = []
        verdicts: list[tuple[Conversation, bool]] = []
        score = 0.0
        while not (planner.turns and planner.over):
            action = self._action.search(await planner.speak())
            if action is None:
                planner.hear(self._neither_text)
                continue
            name, step = action.group(1), action.group(2).strip()
            if name != "answer":
                given = step
                if self._executor:
                    executor, given = await self._executed(problem, name, step, memory, tools[name], team)
                    others.append(executor)
                with phase(TOOLS):
                    result = await tools[name].use(given, team)
                memory.keep(tool=name, given=given, result=result)
                planner.hear(filled(self._result_text, result=result))
                continue
            score = (await self._key.score(step, task, team)).value
            verifier, said = await self._judged(problem, step, memory, team)
            verdict = _last_verdict(said)
            verdicts.append((verifier, verdict is not None and verdict == (score == 1.0)))
            if verdict:
                break
            memory.keep(tool="answer", given=step, result="rejected")
            planner.hear(filled(self._rejected_text, feedback=said))
        return self._episode(planner, others, verdicts, score=score, memory=memory)

    async def _executed(
        self, problem: str, name: str, step: str, memory: RunMemory, tool: Tool, team: Team
    ) -> tuple[Conversation, str]:
        executor = team.begin("executor", max_tokens=self._max_tokens, settings=self._executor_chat)
        description = await tool.description(team)
        executor.hear(
            filled(
                self._executor_text,
                problem=problem,
                memory=memory.shown,
                tool=name,
                description=description,
                step=step,
            )
        )
        said = await executor.speak()
        fenced = _FENCED.search(said)
        return executor, fenced.group(1) if fenced else said

    async def _judged(self, problem: str, answer: str, memory: RunMemory, team: Team) -> tuple[Conversation, str]:
        verifier = team.begin("verifier", max_tokens=self._max_tokens, settings=self._verifier_chat)
        verifier.hear(filled(self._verifier_text, problem=problem, memory=memory.shown, answer=answer))
        return verifier, await verifier.speak()

    def _episode(
        self,
        planner: Conversation,
        executors: list[Conversation],
        verdicts: list[tuple[Conversation, bool]],
        *,
        score: float,
        memory: RunMemory,
    ) -> Episode:
        parts = {"answered": float(bool(verdicts)), "tools": float(memory.uses)}
        return Episode(
            (
                ScoredConversation(planner, reward=score, reward_parts=parts),
                *(ScoredConversation(executor, reward=score) for executor in executors),
                *(ScoredConversation(verifier, reward=float(right)) for verifier, right in verdicts),
            )
        )

    def _opened(self) -> dict[str, Tool]:
        if self._tools is None:
            raise WorkflowError(
                "a tool has files within workflow.source.path, which the job lacks: set it, or give absolute paths"
            )
        return self._tools


def _last_verdict(said: str) -> bool | None:
    """Whether it accepts; None if it says neither."""
    found = _VERDICT.findall(said)
    return found[-1] == _ACCEPT if found else None
