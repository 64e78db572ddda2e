"""Prompts that a class of the user's makes up, each from its number alone."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, Protocol, cast

from trimtab.dataflow.prompts.prompt import Prompt, PromptSourceError, checked_content
from trimtab.fabric.wire.errors import WireError


class PromptGenerator(Protocol):
    """What `generator.entrypoint` names. With `__len__`, numbers stay below it and are shuffled and gone through in
    epochs like the rows of a file; without, they go up for ever."""

    def prompt(self, number: int) -> Mapping[str, Any]:
        """Prompt `number`, from 0: the same for the same number in every process, and quick, as the dataflow waits."""


class GeneratedRows:
    """The prompts of a generator, checked when they are made. `entrypoint` is what messages call it."""

    def __init__(self, generator: object, *, entrypoint: str, prefix: str, prompt_column: str) -> None:
        if not callable(getattr(generator, "prompt", None)):
            raise PromptSourceError(f"{entrypoint} has no `def prompt(self, number: int)`")
        self._generator = cast(PromptGenerator, generator)
        self._entrypoint = entrypoint
        self._prefix = prefix
        self._prompt_column = prompt_column
        self._length = self._tell_length(generator) if isinstance(generator, Sized) else None
        if self._length != 0 and self._make(0) != self._make(0):
            raise PromptSourceError(
                f"{entrypoint}: prompt(0) is not the same twice; it must follow from the number alone, as a restarted "
                "dataflow asks again"
            )

    @property
    def length(self) -> int | None:
        return self._length

    def read(self, start: int, stop: int) -> list[Prompt]:
        return [Prompt(f"{self._prefix}-{number}", self._make(number)) for number in range(start, stop)]

    def _make(self, number: int) -> dict[str, Any]:
        # Code of the user's: whatever it raises is about this prompt, and says so.
        try:
            content = self._generator.prompt(number)
        except Exception as error:
            message = f"{self._entrypoint}, prompt({number}) raised {type(error).__name__}: {error}"
            raise PromptSourceError(message) from error
        try:
            plain = dict(content) if isinstance(content, Mapping) else content
            return checked_content(plain, prompt_column=self._prompt_column)
        except (WireError, ValueError) as error:
            raise PromptSourceError(f"{self._entrypoint}, prompt({number}): {error}") from None

    def _tell_length(self, generator: Sized) -> int:
        try:
            return len(generator)
        except Exception as error:
            message = f"{self._entrypoint}, __len__() raised {type(error).__name__}: {error}"
            raise PromptSourceError(message) from error
