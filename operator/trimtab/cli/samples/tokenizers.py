"""The tokenizer of each policy, read when its first row is shown: where the run says it lies, or a person."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from trimtab.cli.samples.pieces import Decode
from trimtab.fabric.readable import unreadable
from trimtab.rollout.tokenizer import Tokenizer

_MAX_REASON = 300


class Tokenizers:
    """`named` is for every policy; `known` says for each where its own lies."""

    def __init__(self, *, named: Path | None, known: Mapping[str, str]) -> None:
        self._named = named
        self._known = known
        self._read: dict[Path, Decode] = {}

    def decode(self, policy: str) -> Decode:
        """With special tokens by their names, since those say whose turn it is."""
        folder = self._folder(policy)
        if folder not in self._read:
            self._read[folder] = _decoder(folder)
        return self._read[folder]

    def _folder(self, policy: str) -> Path:
        if self._named is not None:
            return self._named
        if policy not in self._known:
            raise click.ClickException(
                f"where the tokenizer of {policy} lies is known of jobs of `trimtab run` alone; name its folder with"
                " --tokenizer"
            )
        return Path(self._known[policy])


def _decoder(folder: Path) -> Decode:
    if why := unreadable(folder):
        raise click.ClickException(f"{why}; name the tokenizer's folder with --tokenizer")
    # The library raises anything for files that it cannot use.
    try:
        tokenizer = Tokenizer.read(folder)
    except Exception as error:
        said = " ".join(str(error).split())[:_MAX_REASON]
        raise click.ClickException(
            f"{folder} has no usable tokenizer: {said}; name another with --tokenizer"
        ) from error
    return tokenizer.decode_marks or tokenizer.decode
