"""An agent as anybody writes one: it is asked what is in a box, and has a tool that opens boxes.

Nothing here knows of Trimtab. It asks whatever OPENAI_BASE_URL says, and runs against any provider as it is.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

import openai

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "open",
            "description": "Opens a box and says what is in it.",
            "parameters": {"type": "object", "properties": {"box": {"type": "integer"}}, "required": ["box"]},
        },
    }
]
_MOST_TURNS = 3


async def agent(client: openai.AsyncOpenAI, *, model: str, prompt: Mapping[str, Any]) -> dict[str, Any]:
    """The boxes it opened, and what it said in the end."""
    messages: list[Any] = [{"role": "user", "content": prompt["prompt"]}]
    opened: list[Any] = []
    for _ in range(_MOST_TURNS):
        completion = await client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
        said = completion.choices[0].message
        if not said.tool_calls:
            return {"opened": opened, "answer": said.content or ""}
        messages.append(said.model_dump(exclude_none=True))
        for call in said.tool_calls:
            if call.type != "function":
                continue
            box = json.loads(call.function.arguments).get("box")
            opened.append(box)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": _inside(prompt["boxes"], box)})
    return {"opened": opened, "answer": ""}


def _inside(boxes: str, box: object) -> str:
    return boxes[box] if isinstance(box, int) and 0 <= box < len(boxes) else "?"


async def main() -> None:
    prompt = json.load(sys.stdin)
    async with openai.AsyncOpenAI() as client:
        outcome = await agent(client, model="solver", prompt=prompt)
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
