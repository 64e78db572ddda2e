"""Text and chat messages to token ids. What was sampled is never tokenized again: ids are only appended to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
"""A chat message as templates take it: `role`, `content`, and whatever else the template knows."""

_NONE: Mapping[str, Any] = MappingProxyType({})
# Stands for what the policy said when only the text after it is wanted. No template has a reason to change it.
_SAID = "trimtabsaidthis"


class ChatTemplateError(ValueError):
    """The messages cannot be rendered with the model's chat template."""


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back, without special tokens of its own; `render` where the model has a chat template."""

    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    render: Callable[[Sequence[Message], Mapping[str, Any]], str] | None = None
    """Messages as text, up to and with the words that make the assistant speak, given arguments of the template.
    Raises ChatTemplateError.
    """
    template_arguments: frozenset[str] = frozenset()
    """That the template looks at."""
    decode_marks: Callable[[list[int]], str] | None = None
    """As `decode`, with special tokens by their names; None where there are none."""

    @classmethod
    def of(cls, pretrained: PreTrainedTokenizerBase) -> Tokenizer:
        from jinja2 import TemplateError

        def render(messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
            conversation = [dict(message) for message in messages]
            try:
                return str(
                    pretrained.apply_chat_template(
                        conversation, tokenize=False, add_generation_prompt=True, **arguments
                    )
                )
            except (TemplateError, TypeError) as error:
                raise ChatTemplateError(f"the chat template refuses the messages: {error}") from error

        return cls(
            encode=lambda text: list(pretrained.encode(text, add_special_tokens=False)),
            decode=partial(_decoded, pretrained, skip_special_tokens=True),
            decode_marks=partial(_decoded, pretrained, skip_special_tokens=False),
            render=render if pretrained.chat_template else None,
            template_arguments=_arguments_of(pretrained.chat_template),
        )

    @classmethod
    def read(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a model. AutoTokenizer imports torch, for seconds, which a worker needs for nothing else; it
        is asked only where there is no `tokenizer.json`."""
        if (folder / "tokenizer.json").is_file():
            from transformers import PreTrainedTokenizerFast

            return cls.of(PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True))
        from transformers import AutoTokenizer

        return cls.of(AutoTokenizer.from_pretrained(folder, local_files_only=True))

    def opening(self, messages: Sequence[Message], *, arguments: Mapping[str, Any] = _NONE) -> list[int]:
        """The tokens of messages at the beginning of a conversation."""
        return self.encode(self._rendered(messages, arguments))

    def following(self, messages: Sequence[Message], *, last: int, arguments: Mapping[str, Any] = _NONE) -> list[int]:
        """The tokens of messages after something that was sampled, whose last token was `last`.

        The whole conversation cannot be rendered again: templates drop old thoughts, and decoding what was sampled and
        encoding it may give other tokens. So a stand-in is rendered in its place, and what comes after it is taken.
        """
        exchange = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SAID}]
        _, found, rest = self._rendered([*exchange, *messages], arguments).rpartition(_SAID)
        if not found:
            raise ChatTemplateError("the chat template does not repeat what the assistant said: begin with chat=False")
        token_ids = self.encode(rest)
        # The rest begins with the end of the assistant's turn, which a policy that stopped by itself has written.
        return token_ids[1:] if token_ids[:1] == [last] else token_ids

    def is_mark(self, token_id: int) -> bool:
        """Whether it is a special token, such as the end of a turn, and no part of a text."""
        return self.decode_marks is not None and not self.decode([token_id]) and bool(self.decode_marks([token_id]))

    def _rendered(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
        if self.render is None:
            raise ChatTemplateError("the tokenizer has no chat template: hear text instead of messages")
        return self.render(messages, arguments)


def _decoded(pretrained: PreTrainedTokenizerBase, token_ids: list[int], *, skip_special_tokens: bool) -> str:
    """Without the tidying up of spaces before marks that some tokenizers ask for: it would change what an earlier token
    says when a later one comes.
    """
    return str(
        pretrained.decode(token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
    )


def _arguments_of(template: str | Mapping[str, str] | None) -> frozenset[str]:
    """Of those that are passed on. A model may have several templates, by name, of which transformers chooses one."""
    texts = [template] if isinstance(template, str) else list((template or {}).values())
    return frozenset(name for name in ("enable_thinking", "tools") if any(name in text for text in texts))
