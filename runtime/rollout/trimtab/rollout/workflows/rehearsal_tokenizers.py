"""Tokenizers for rehearsals, with a token for every character: without a chat template, and with one that has tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.rollout.tokenizer import ChatTemplateError, Message, Tokenizer

# Characters that no text has.
_MARKS = {"<|im_start|>": "\ue000", "<|im_end|>": "\ue001"}
_TOOLS = "You may call tools, each call as JSON between <tool_call> and </tool_call>:"


def _encode(text: str) -> list[int]:
    for mark, character in _MARKS.items():
        text = text.replace(mark, character)
    return [ord(character) for character in text]


def _decode(token_ids: list[int]) -> str:
    return "".join(chr(one) for one in token_ids if chr(one) not in _MARKS.values())


def _decode_marks(token_ids: list[int]) -> str:
    text = "".join(map(chr, token_ids))
    for mark, character in _MARKS.items():
        text = text.replace(character, mark)
    return text


def _render(messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
    shown = [(str(message.get("role")), _content_of(message)) for message in messages]
    tools = arguments.get("tools")
    if tools:
        listed = "\n".join([_TOOLS, *(json.dumps(tool) for tool in tools)])
        begins = [text for role, text in shown[:1] if role == "system"]
        shown = [("system", "\n\n".join([*begins, listed])), *shown[len(begins) :]]
    said = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in shown]
    return "".join([*said, "<|im_start|>assistant\n"])


def _content_of(message: Message) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise ChatTemplateError(f"a message's content is a {type(content).__name__}: a rehearsal takes text")
    return "\n".join([*([content] if content else []), *map(_call, message.get("tool_calls") or ())])


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    said = json.dumps({"name": function["name"], "arguments": function["arguments"]})
    return f"<tool_call>\n{said}\n</tool_call>"


CHARACTERS = Tokenizer(encode=lambda text: [ord(c) for c in text], decode=lambda ids: "".join(map(chr, ids)))
"""Of a policy that goes on with text."""

CHAT = Tokenizer(
    encode=_encode,
    decode=_decode,
    decode_marks=_decode_marks,
    render=_render,
    template_arguments=frozenset({"tools"}),
)
"""Of a policy that chats, and calls tools as Hermes and Qwen do."""
