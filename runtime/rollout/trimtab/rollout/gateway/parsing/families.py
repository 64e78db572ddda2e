"""Which family a model is of. Its chat template shows it: what it writes for a call, the model was taught to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.rollout.gateway.parsing.deepseek import DeepSeekCalls
from trimtab.rollout.gateway.parsing.hermes import HermesCalls
from trimtab.rollout.gateway.parsing.llama import LlamaCalls
from trimtab.rollout.gateway.parsing.mistral import MistralCalls
from trimtab.rollout.gateway.parsing.plain import NoCalls
from trimtab.rollout.gateway.parsing.reader import Calls
from trimtab.rollout.tokenizer import ChatTemplateError, Message


@dataclass(frozen=True, kw_only=True)
class Family:
    name: str
    calls: Calls
    marks_are_special: bool = False
    """Its marks are special tokens, which decoding leaves out unless told otherwise."""
    arguments_as_text: bool = False
    """Its templates take the arguments of a call as JSON text, and not as a mapping."""


HERMES = Family(name="hermes", calls=HermesCalls())
LLAMA = Family(name="llama", calls=LlamaCalls())
MISTRAL = Family(name="mistral", calls=MistralCalls(), marks_are_special=True)
DEEPSEEK = Family(name="deepseek", calls=DeepSeekCalls(), marks_are_special=True, arguments_as_text=True)
PLAIN = Family(name="plain", calls=NoCalls())

_NAME = "trimtabprobe"
_CALL_ID = "probe0000"


def family_of(render: Callable[[Sequence[Message]], str] | None) -> Family:
    """By what the template makes of a call. `render` raises ChatTemplateError for what it cannot make anything of."""
    if render is None:
        return PLAIN
    for arguments in ({"x": 1}, '{"x": 1}'):
        try:
            rendered = render(_probe(arguments))
        except ChatTemplateError:
            continue
        if _NAME not in rendered:
            return PLAIN
        if MistralCalls.opening in rendered:
            return MISTRAL
        if DeepSeekCalls.opening in rendered:
            return DEEPSEEK
        before = rendered[: rendered.index(_NAME)]
        # GLM writes the mark too, but no JSON behind it.
        if before.rstrip().endswith('{"name": "') and HermesCalls.opening in before:
            return HERMES
        if before.endswith('{"name": "'):
            return LLAMA
        return PLAIN
    return PLAIN


def _probe(arguments: object) -> list[dict[str, Any]]:
    call = {"id": _CALL_ID, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    return [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "!", "tool_call_id": _CALL_ID, "name": _NAME},
    ]
