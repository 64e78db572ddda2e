"""The order of prompts as a pure function of the seed and a position, so that a restart needs only the position."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PromptSourceError(ValueError):
    """A prompt source cannot be read; the message names the file, the line and what is wrong."""


@dataclass(frozen=True)
class Prompt:
    """One line of a source: its identity and everything that reaches the workflow."""

    prompt_id: str
    content: Mapping[str, Any]


def read_jsonl(path: Path, *, source: str, prompt_column: str) -> list[Prompt]:
    """All prompts of a JSON lines file; blank lines are skipped, anything else that is not a prompt is refused."""
    if not path.is_file():
        raise PromptSourceError(f"data.prompts[{source}].jsonl.uri: {path} is not a file")
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except json.JSONDecodeError as error:
            raise PromptSourceError(f"{path.name}, line {number}: not JSON: {error.msg}") from None
        if not isinstance(content, dict) or prompt_column not in content:
            raise PromptSourceError(f"{path.name}, line {number}: expected an object with the key {prompt_column!r}")
        prompts.append(Prompt(prompt_id=f"{source}-{number}", content=content))
    if not prompts:
        raise PromptSourceError(f"{path.name} holds no prompt")
    return prompts


class PromptOrder:
    """Prompt number n of the run, for any n: epoch after epoch, each shuffled by its own seed."""

    def __init__(self, prompts: Sequence[Prompt], *, seed: int, shuffle: bool) -> None:
        self._prompts = prompts
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = -1
        self._order: list[int] = []

    @property
    def per_epoch(self) -> int:
        return len(self._prompts)

    def at(self, position: int) -> Prompt:
        epoch, offset = divmod(position, len(self._prompts))
        if epoch != self._epoch:
            self._order = list(range(len(self._prompts)))
            if self._shuffle:
                random.Random(f"{self._seed}/{epoch}").shuffle(self._order)  # noqa: S311 - an order, not a secret
            self._epoch = epoch
        return self._prompts[self._order[offset]]
