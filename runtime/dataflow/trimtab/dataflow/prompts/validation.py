"""Checks every row of a source before the job starts, and leaves out prompts with more tokens than the limit."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from tokenizers import Tokenizer

from trimtab.dataflow.prompts.order import MixedSource
from trimtab.dataflow.prompts.prompt import BLOCK_ROWS, Progress, PromptRows, PromptSourceError
from trimtab.fabric.readable import unreadable

_log = structlog.get_logger(__name__)


def validated(
    rows: PromptRows,
    *,
    field: str,
    name: str,
    weight: float,
    prompt_column: str,
    limit: TokenLimit | None,
    progress: Progress,
) -> MixedSource:
    """Read every row once: a row that cannot be sent raises PromptSourceError, and one with more tokens than `limit` is
    left out. `field` is the source's field in the manifest, for messages. Rows of a generator without end are checked
    as they come, so it can have no limit.
    """
    if rows.length is None:
        if limit is not None:
            raise PromptSourceError(
                f"{field}: maxPromptTokens cannot be held with a generator without end; give it a __len__, or make its "
                "prompts short enough and leave maxPromptTokens out"
            )
        return MixedSource(name=name, weight=weight, rows=rows)
    if rows.length == 0:
        raise PromptSourceError(f"{field} holds no prompt")
    kept = array("q")
    for start in range(0, rows.length, BLOCK_ROWS):
        stop = min(rows.length, start + BLOCK_ROWS)
        progress.note("checking prompts", source=name, rows=start, of=rows.length)
        prompts = rows.read(start, stop)
        if limit is not None:
            fits = limit.fitting([prompt.content[prompt_column] for prompt in prompts])
            kept.extend(start + number for number, fit in enumerate(fits) if fit)
    skipped = rows.length - len(kept) if limit is not None else 0
    _log.info("prompts_read", source=name, prompts=rows.length - skipped, skipped=skipped)
    if not skipped:
        return MixedSource(name=name, weight=weight, rows=rows)
    if not kept:
        assert limit is not None
        raise PromptSourceError(
            f"{field}: all {skipped} prompts are longer than maxPromptTokens {limit.max_tokens}; raise it, or remove "
            "the source"
        )
    return MixedSource(name=name, weight=weight, rows=rows, kept=np.array(kept, dtype=np.int64), skipped=skipped)


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
