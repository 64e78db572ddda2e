"""The order of prompts as a pure function of the seed and a position, so that a restart needs only the position."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.values import check_plain

MAX_KEYS = 4096
# A task has other fields, too.
_MAX_BYTES = 3 << 20


class PromptSourceError(JobMisconfigured):
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
    # Only line feeds end a line: JSON strings may hold the other characters that str.splitlines would split at.
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            content = _content(line, prompt_column=prompt_column)
        except (UnicodeDecodeError, RecursionError, WireError, ValueError) as error:
            raise PromptSourceError(f"{path.name}, line {number}: {error}") from None
        prompts.append(Prompt(prompt_id=f"{source}-{number}", content=content))
    if not prompts:
        raise PromptSourceError(f"{path.name} holds no prompt")
    return prompts


def _content(line: bytes, *, prompt_column: str) -> dict[str, Any]:
    """What can be sent as a task's prompt: whatever cannot is better refused here than in the middle of the run."""
    try:
        content = json.loads(line, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}") from None
    if not isinstance(content, dict) or prompt_column not in content:
        raise ValueError(f"expected an object with the key {prompt_column!r}")
    check_plain(content, field="prompt")
    try:
        size = len(msgspec.msgpack.encode(content))
    except OverflowError as error:
        raise ValueError(f"a number cannot be sent: {error}") from None
    if len(content) > MAX_KEYS or size > _MAX_BYTES:
        raise ValueError(f"{len(content)} keys and {size} bytes, at most {MAX_KEYS} and {_MAX_BYTES} can be sent")
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class PromptOrder:
    """Prompt number n of the run, for any n: epoch after epoch, each shuffled by its own seed."""

    def __init__(self, prompts: Sequence[Prompt], *, seed: int, shuffle: bool, epochs: int | None = None) -> None:
        self._prompts = prompts
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = -1
        self._order: list[int] = []

        self.total = None if epochs is None else epochs * len(prompts)
        """How many there are in all; None for no end."""

    def at(self, position: int) -> Prompt:
        epoch, offset = divmod(position, len(self._prompts))
        if epoch != self._epoch:
            self._order = list(range(len(self._prompts)))
            if self._shuffle:
                random.Random(f"{self._seed}/{epoch}").shuffle(self._order)  # noqa: S311 - an order, not a secret
            self._epoch = epoch
        return self._prompts[self._order[offset]]
