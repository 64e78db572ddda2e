"""An agent that does with its histories whatever agents do: sends them back, edits, cuts, reorders and forks them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace

from tests.support.gateway.tokenizers import MARKS
from trimtab.rollout.gateway.canonical import flattened
from trimtab.rollout.gateway.exchange import Answer, Ask, Refused, Said, Tool, ToolCall
from trimtab.rollout.gateway.session import EpisodeSession

TOOLS = (
    Tool(name="look", description="Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}}),
)
_WORDS = ("sky", "blue", "one", "two", "hello there", "x = 3", "", " spaces ", "line\nline")


def sayings(family: str, chance: random.Random) -> Callable[[int], str]:
    """What a model of the family may write: texts, thoughts and calls, not all of them well formed."""

    def say(number: int) -> str:
        # A number, so that no two answers are the same by chance; now and then they are.
        words = chance.choice(_WORDS) + (f" {number}" if chance.random() < 0.8 else "")
        thought = chance.choice(("", "", f"<think>\nhm {number}\n</think>\n\n", "<think>\n\n</think>\n\n"))
        arguments = json.dumps({"at": words})
        calls = {
            "qwen2.5": f'\n<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>',
            "qwen3": f'\n<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>',
            "mistral": f'[TOOL_CALLS] [{{"name": "look", "arguments": {arguments}}}]',
            "deepseek": f"{MARKS['deepseek'][4]}{MARKS['deepseek'][6]}function{MARKS['deepseek'][8]}look\n```json\n"
            f"{arguments}\n```{MARKS['deepseek'][7]}{MARKS['deepseek'][5]}",
            "glm": f"\n<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>{words}</arg_value>\n</tool_call>",
        }
        if family == "gpt-oss":
            return _harmony(words, arguments, number, chance)
        call = calls.get(family, "")
        if family == "llama3" and chance.random() < 0.5:
            return f'{{"name": "look", "parameters": {arguments}}}'
        kind = chance.randrange(4)
        return thought + words + (call * kind if kind < 3 else call[: len(call) // 2])

    return say


def _harmony(words: str, arguments: str, number: int, chance: random.Random) -> str:
    """Messages with heads, of which the last ends the turn with a mark of its own."""
    thought = f"<|channel|>analysis<|message|>hm {number}<|end|><|start|>assistant" if chance.random() < 0.5 else ""
    if chance.random() < 0.5:
        return f"{thought}<|channel|>final<|message|>{words}<|return|>"
    head = chance.choice(
        ("<|channel|>commentary to=functions.look <|constrain|>json", " to=functions.look<|channel|>commentary json")
    )
    broken = arguments[:-1] if chance.random() < 0.2 else arguments
    return f"{thought}{head}<|message|>{broken}<|call|>"


def respelt(said: Said, chance: random.Random, *, ids: dict[str, str]) -> Said:
    """As an SDK may send it back: nothing that it means has changed. `ids` are those that were renamed so far."""
    if said.answers is not None:
        return replace(said, answers=ids.get(said.answers, said.answers))
    calls = []
    for call in said.calls:
        arguments = call.arguments
        if chance.random() < 0.5:
            arguments = json.dumps(json.loads(arguments), indent=chance.choice((None, 2)))
        if chance.random() < 0.3:
            ids[call.call_id] = f"own{chance.randrange(10**6):06d}"
        calls.append(ToolCall(call_id=ids.get(call.call_id, call.call_id), name=call.name, arguments=arguments))
    return replace(said, calls=tuple(calls), reasoning=said.reasoning if chance.random() < 0.3 else "")


class Agent:
    """Draws what it does. `faithful` agents respell what they send back, and change nothing else."""

    def __init__(self, session: EpisodeSession, role: str, *, seed: int, faithful: bool, tools: bool) -> None:
        self._session = session
        self._role = role
        self._chance = random.Random(seed)
        self._faithful = faithful
        self._tools = TOOLS if tools else ()
        self._histories: list[tuple[Said, ...]] = []
        self.refused = 0
        self.answered: list[tuple[Ask, Answer]] = []

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            if self._faithful or self._chance.random() < 0.8:
                await self._step()
            else:
                await asyncio.gather(*(self._step() for _ in range(self._chance.randrange(2, 4))))

    async def _step(self) -> None:
        chance = self._chance
        known = self._histories[-1:] if self._faithful else [*self._histories[-4:], ()]
        history = chance.choice(known) if known else ()
        ids: dict[str, str] = {}
        messages = [respelt(said, chance, ids=ids) for said in history]
        if not self._faithful:
            messages = self._changed(messages)
        messages += self._next(messages)
        count = 1 if self._faithful or chance.random() < 0.7 else 2
        most = None if self._faithful or chance.random() < 0.8 else chance.randrange(1, 30)
        ask = Ask(role=self._role, messages=tuple(messages), tools=self._tools, count=count, max_tokens=most)
        try:
            answers: tuple[Answer, ...] = await self._session.ask(ask)
        except Refused:
            # Some templates refuse histories that are out of order.
            self.refused += 1
            return
        self.answered += [(ask, answer) for answer in answers]
        self._histories += [(*messages, answer.said) for answer in answers]

    def _next(self, messages: list[Said]) -> list[Said]:
        """The answers of tools to all calls, or a word of the user's."""
        calls = messages[-1].calls if messages else ()
        if calls:
            texts = [self._chance.choice(_WORDS) for _ in calls]
            parts = [flattened([{"type": "text", "text": text}], field="content") for text in texts]
            return [
                Said(speaker="tool", text=part, answers=call.call_id) for part, call in zip(parts, calls, strict=True)
            ]
        opening = [Said(speaker="system", text="Be good.")] if not messages and self._chance.random() < 0.3 else []
        return [*opening, Said(speaker="user", text=self._chance.choice(_WORDS) + "?")]

    def _changed(self, messages: list[Said]) -> list[Said]:
        chance = self._chance
        if len(messages) < 2 or chance.random() < 0.5:
            return messages
        at = chance.randrange(len(messages))
        kind = chance.randrange(5)
        if kind == 0:
            messages[at] = replace(messages[at], text=messages[at].text + chance.choice((" ", "!", " really")))
        elif kind == 1:
            del messages[at : at + chance.randrange(1, 3)]
        elif kind == 2:
            return messages[: at + 1]
        elif kind == 3:
            other = chance.randrange(len(messages))
            messages[at], messages[other] = messages[other], messages[at]
        elif messages[at].speaker == "assistant":
            messages[at] = replace(messages[at], reasoning="something else")
        return messages
