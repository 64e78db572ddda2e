"""How long a prompt is in tokens, so that those no policy could answer are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trimtab.dataflow.prompts.prompt import PromptSourceError
from trimtab.fabric.readable import unreadable


class TokenLimit:
    """A prompt must fit for each of the tokenizers."""

    def __init__(self, folders: Iterable[Path], *, max_tokens: int) -> None:
        self._tokenizers = [_tokenizer(folder) for folder in dict.fromkeys(folders)]
        self.max_tokens = max_tokens

    def fitting(self, prompts: Sequence[Any]) -> list[bool]:
        """Of each prompt, text or chat, whether it is short enough."""
        texts = [prompt_text(prompt) for prompt in prompts]
        fits = [True] * len(texts)
        for tokenizer in self._tokenizers:
            for number, encoding in enumerate(tokenizer.encode_batch_fast(texts, add_special_tokens=False)):
                fits[number] = fits[number] and len(encoding) <= self.max_tokens
        return fits


def prompt_text(prompt: Any) -> str:
    """What is counted: a text as it is, a chat as the contents of its messages on lines of their own. What a chat
    template adds is not known here, nor what an image costs."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(text for message in prompt for text in _texts(message))


def _texts(message: Any) -> list[str]:
    """Of a message whose content is a text, or a list of parts of which some have a text; a bare text is one, too."""
    if isinstance(message, str):
        return [message]
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list | tuple) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _tokenizer(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if why := unreadable(file):
        raise PromptSourceError(f"data.maxPromptTokens: {why}, and tokens are counted with it")
    # The library raises plain Exception for a file it cannot use.
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        raise PromptSourceError(f"data.maxPromptTokens: {file} cannot be loaded: {error}") from error
    # Either may be part of the file, and would hide how long a text is.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
