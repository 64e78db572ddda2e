"""Rehearsals of workflows that chat, use tools, or let agents ask."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import ClientSession, ClientTimeout

from trimtab.rollout.workflows.rehearsal import CHAT, Script, rehearse
from trimtab.rollout.workflows.team import Assignment, ChatSettings, Episode, ScoredConversation, Team

PROMPT = {"prompt": "What is 17 + 25?"}
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"numbers": {"type": "array"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"numbers": [17, 25]}}\n</tool_call>'


class Chatting:
    """Shows its tools to the template, and answers calls as a chat does."""

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        chat = team.begin(settings=ChatSettings(system="You add.", tools=(ADD["function"],)))
        chat.hear(task.column("prompt"))
        while "<tool_call>" in await chat.speak():
            chat.hear([{"role": "tool", "content": "42"}])
        return Episode((ScoredConversation(chat, reward=1.0),))


class Agent:
    """Asks as agents do, and adds what it is told to."""

    async def run(self, task: Assignment, team: Team, /) -> Episode:
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.column("prompt")}]
        async with team.endpoint() as endpoint, ClientSession(timeout=ClientTimeout(total=60)) as session:
            while True:
                asked = {"model": endpoint.model, "messages": messages, "tools": [ADD]}
                headers = {"Authorization": f"Bearer {endpoint.key}"}
                address = f"{endpoint.openai_url}/chat/completions"
                async with session.post(address, json=asked, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    (choice,) = (await answer.json())["choices"]
                messages.append(choice["message"])
                if choice["finish_reason"] != "tool_calls":
                    break
                (call,) = choice["message"]["tool_calls"]
                total = sum(json.loads(call["function"]["arguments"])["numbers"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(total)})
            right = float(choice["message"]["content"] == "42")
            return Episode(tuple(endpoint.scored(right)))


async def test_a_chat_with_tools_reads_as_its_template_has_it() -> None:
    script = Script(CALL, "42", tokenizer=CHAT)
    episode = await rehearse(Chatting(), PROMPT, scripts={"solver": script})
    first, second = script.heard
    assert first.startswith("system\nYou add.\n\nYou may call tools")
    assert '"name": "add"' in first
    assert first.endswith("user\nWhat is 17 + 25?\nassistant\n")
    assert second == f"{first}{CALL}\ntool\n42\nassistant\n"
    assert [one.conversation.turns for one in episode.scored] == [2]


async def test_an_agent_asks_the_scripts_behind_a_real_gateway() -> None:
    script = Script(CALL, "42", tokenizer=CHAT)
    episode = await rehearse(Agent(), PROMPT, scripts={"solver": script})
    assert [one.reward for one in episode.scored] == [1.0], "one row: what was sampled is never rendered again"
    assert "tool\n42\nassistant\n" in script.heard[1]


async def test_a_line_ends_at_a_text_to_stop_at() -> None:
    class Stopping:
        async def run(self, task: Assignment, team: Team, /) -> Episode:
            chat = team.begin()
            chat.hear(task.column("prompt"))
            said = [await chat.speak(stop=["</think>", "."]), await chat.speak()]
            return Episode((ScoredConversation(chat, reward=float(said == ["<think>hm</think>", "42"])),))

    script = Script("<think>hm</think> and more.", "42", tokenizer=CHAT)
    (scored,) = (await rehearse(Stopping(), PROMPT, scripts={"solver": script})).scored
    assert scored.reward == 1.0
