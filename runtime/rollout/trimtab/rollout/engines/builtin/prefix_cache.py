"""Keys and values computed before: samples of one prompt and later turns of a conversation start from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trimtab.rollout.engines.builtin.kv_rows import KvShape
from trimtab.rollout.engines.builtin.prefix_tree import PrefixTree

_FIRST_SLOTS = 1024


class PrefixCache:
    """A copy of keys and values for every distinct prefix, apart from the rows that are decoded."""

    def __init__(self, shape: KvShape, *, max_tokens: int) -> None:
        self._shape = shape
        self._tree = PrefixTree(capacity=max_tokens)
        self._pool = shape.zeros(1, 0)
        self._max_tokens = max_tokens
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """Changes with every flush: what was computed in an earlier epoch must not be kept."""
        return self._epoch

    @property
    def kept_tokens(self) -> int:
        return self._tree.kept_tokens

    def flush(self) -> None:
        self._epoch += 1
        self._tree.clear()
        self._pool = self._shape.zeros(1, 0)

    def match(self, tokens: Sequence[int]) -> list[int]:
        """Slots of the longest kept prefix; valid until the next `keep` or `flush`."""
        return self._tree.match(tokens)

    def content(self, slots: Sequence[int]) -> torch.Tensor:
        """(layers, keys and values, heads, tokens, head size)"""
        return self._pool[:, :, 0].index_select(3, self._index(slots))

    def keep(self, tokens: Sequence[int], content: torch.Tensor, *, epoch: int) -> None:
        """Keep the keys and values of these tokens, as far as they are not kept already and there is room."""
        if epoch != self._epoch:
            return
        start, slots = self._tree.insert(tokens)
        if slots:
            self._reserve(max(slots) + 1)
            self._pool[:, :, 0].index_copy_(3, self._index(slots), content[:, :, :, start : start + len(slots)])

    def _reserve(self, slots: int) -> None:
        present = self._pool.shape[-2]
        if slots > present:
            larger = self._shape.zeros(1, min(max(_FIRST_SLOTS, slots, 2 * present), self._max_tokens))
            larger[..., :present, :] = self._pool
            self._pool = larger

    def _index(self, slots: Sequence[int]) -> torch.Tensor:
        return torch.tensor(slots, device=self._shape.device, dtype=torch.int64)
