"""Prompts on their way into the cache: sequences of one shape are computed together, long ones in several steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from trimtab.rollout.engines.builtin.generation import Generation
from trimtab.rollout.engines.builtin.kv_rows import KvShape
from trimtab.rollout.engines.builtin.transformer import Piece


class Cohort:
    """Sequences of one length, of which equally many tokens were found in the prefix cache."""

    def __init__(self, shape: KvShape, members: Sequence[Generation], prefixes: Sequence[torch.Tensor]) -> None:
        self.members = members
        self._tokens = torch.tensor([member.tokens for member in members])
        self._cache = shape.zeros(len(members), self._tokens.shape[1])
        self._done = prefixes[0].shape[-2]
        for number, prefix in enumerate(prefixes):
            self._cache[:, :, number, :, : self._done] = prefix

    @property
    def finished(self) -> bool:
        return self._done == self._tokens.shape[1]

    def advance(self, budget: int) -> Piece:
        """The next tokens of all members, so many together at most, but one of each at least."""
        start = self._done
        self._done = min(self._tokens.shape[1], start + max(1, budget // len(self.members)))
        return Piece(tokens=self._tokens[:, start : self._done], cache=self._cache, start=start)

    def contents(self) -> Iterator[tuple[Generation, torch.Tensor]]:
        """The members' keys and values (layers, keys and values, heads, length, head size)."""
        for number, member in enumerate(self.members):
            yield member, self._cache[:, :, number]


def shared_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return min(len(one), len(other))
