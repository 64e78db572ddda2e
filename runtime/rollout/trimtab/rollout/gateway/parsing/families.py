"""Which family a model is of. Its chat template shows it: what it writes for a call, the model was taught to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trimtab.rollout.gateway.exchange import Piece, Said, Tool
from trimtab.rollout.gateway.parsing.deepseek import DeepSeekCalls
from trimtab.rollout.gateway.parsing.glm import GlmCalls
from trimtab.rollout.gateway.parsing.harmony import CALL_END, HarmonyReader
from trimtab.rollout.gateway.parsing.hermes import HermesCalls
from trimtab.rollout.gateway.parsing.llama import LlamaCalls
from trimtab.rollout.gateway.parsing.mistral import MistralCalls
from trimtab.rollout.gateway.parsing.plain import NoCalls
from trimtab.rollout.gateway.parsing.reader import Calls, Reader
from trimtab.rollout.tokenizer import ChatTemplateError, Message


class AnswerReader(Protocol):
    """Of one answer, as it comes."""

    def feed(self, written: str) -> list[Piece]: ...

    def close(self) -> list[Piece]: ...

    @property
    def said(self) -> Said: ...


class MakeReader(Protocol):
    def __call__(
        self, tools: Sequence[Tool], *, new_id: Callable[[], str], index: int = 0, thinking: bool = False
    ) -> AnswerReader: ...


@dataclass(frozen=True, kw_only=True)
class Family:
    name: str
    reader: MakeReader
    marks_are_special: bool = False
    """Its marks are special tokens, which decoding leaves out unless told otherwise."""
    marks_without_tools: bool = False
    """Its answers cannot be read without them, whether there are tools or not."""
    call_end: str | None = None
    """The mark that ends a turn with calls, where another ends the others."""
    arguments_as_text: bool = False
    """Its templates take the arguments of a call as JSON text, and not as a mapping."""


def _reading(calls: Callable[[Sequence[Tool]], Calls]) -> MakeReader:
    def reader(
        tools: Sequence[Tool], *, new_id: Callable[[], str], index: int = 0, thinking: bool = False
    ) -> AnswerReader:
        return Reader(calls(tools), new_id=new_id, index=index, thinking=thinking)

    return reader


def _harmony(
    tools: Sequence[Tool], *, new_id: Callable[[], str], index: int = 0, thinking: bool = False
) -> AnswerReader:
    return HarmonyReader(new_id=new_id, index=index)


HERMES = Family(name="hermes", reader=_reading(lambda _: HermesCalls()))
LLAMA = Family(name="llama", reader=_reading(lambda _: LlamaCalls()))
MISTRAL = Family(name="mistral", reader=_reading(lambda _: MistralCalls()), marks_are_special=True)
DEEPSEEK = Family(
    name="deepseek", reader=_reading(lambda _: DeepSeekCalls()), marks_are_special=True, arguments_as_text=True
)
GLM = Family(name="glm", reader=_reading(GlmCalls))
HARMONY = Family(name="harmony", reader=_harmony, marks_are_special=True, marks_without_tools=True, call_end=CALL_END)
PLAIN = Family(name="plain", reader=_reading(lambda _: NoCalls()))

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
        if before.endswith("to=functions."):
            return HARMONY
        if before.endswith(GlmCalls.opening):
            return GLM
        if before.endswith('{"name": "') and HermesCalls.opening in before:
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
