"""Keys and values computed before: samples of one prompt and later turns of a conversation start from them."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

import torch

from trimtab.rollout.engines.builtin.kv_rows import KvShape

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


class _Node:
    """The tokens on the edge that leads here, with their slots."""

    __slots__ = ("children", "parent", "slots", "tokens", "used")

    def __init__(self, tokens: list[int], slots: list[int], parent: _Node | None, used: int) -> None:
        self.tokens = tokens
        self.slots = slots
        self.parent = parent
        self.used = used
        self.children: dict[int, _Node] = {}


class PrefixTree:
    """Which token sequences have their keys and values kept, and in which slots: a radix tree over token ids. Slots are
    the numbers from 0 to `capacity`. The ends of what was used longest ago make room for new tokens.
    """

    def __init__(self, *, capacity: int) -> None:
        self._capacity = capacity
        self._clock = itertools.count(1)
        self.clear()

    def clear(self) -> None:
        self._root = _Node([], [], None, 0)
        self._free: list[int] = []
        self._next = 0

    @property
    def kept_tokens(self) -> int:
        return self._next - len(self._free)

    def match(self, tokens: Sequence[int]) -> list[int]:
        """The slots of the longest kept prefix."""
        node, _ = self._walk(tokens, next(self._clock))
        slots: list[int] = []
        while node.parent is not None:
            slots[:0] = node.slots
            node = node.parent
        return slots

    def insert(self, tokens: Sequence[int]) -> tuple[int, list[int]]:
        """Keep a sequence: the slots for its tokens from the returned position on, for the caller to fill.

        Fewer than asked for when there is no room: what is left out is the end.
        """
        now = next(self._clock)
        node, matched = self._walk(tokens, now)
        slots = self._allocate(len(tokens) - matched, now)
        if slots:
            new = list(tokens[matched : matched + len(slots)])
            node.children[new[0]] = _Node(new, slots, node, now)
        return matched, slots

    def _walk(self, tokens: Sequence[int], now: int) -> tuple[_Node, int]:
        """The node where the kept prefix ends, split off if it ended within an edge, and the prefix's length."""
        node, position = self._root, 0
        while position < len(tokens) and (child := node.children.get(tokens[position])) is not None:
            common = 0
            for kept, wanted in zip(child.tokens, itertools.islice(tokens, position, None), strict=False):
                if kept != wanted:
                    break
                common += 1
            position += common
            if common < len(child.tokens):
                return self._split(child, common, now), position
            child.used = now
            node = child
        return node, position

    def _split(self, node: _Node, at: int, now: int) -> _Node:
        assert node.parent is not None
        upper = _Node(node.tokens[:at], node.slots[:at], node.parent, now)
        node.parent.children[upper.tokens[0]] = upper
        node.tokens, node.slots, node.parent = node.tokens[at:], node.slots[at:], upper
        upper.children[node.tokens[0]] = node
        return upper

    def _allocate(self, count: int, now: int) -> list[int]:
        lacking = count - len(self._free) - (self._capacity - self._next)
        if lacking > 0:
            self._evict(lacking, now)
        taken = self._free[:count]
        del self._free[:count]
        fresh = min(count - len(taken), self._capacity - self._next)
        taken.extend(range(self._next, self._next + fresh))
        self._next += fresh
        return taken

    def _evict(self, count: int, now: int) -> None:
        """Free so many slots, from leaves inwards; what the present walk has touched stays."""
        order = itertools.count()
        leaves = [(node.used, next(order), node) for node in self._leaves()]
        heapq.heapify(leaves)
        while count > 0 and leaves and leaves[0][0] < now:
            _, _, node = heapq.heappop(leaves)
            assert node.parent is not None
            given = min(count, len(node.slots))
            self._free.extend(node.slots[-given:])
            count -= given
            if given < len(node.slots):
                del node.tokens[-given:], node.slots[-given:]
                return
            del node.parent.children[node.tokens[0]]
            if not node.parent.children and node.parent.parent is not None:
                heapq.heappush(leaves, (node.parent.used, next(order), node.parent))

    def _leaves(self) -> list[_Node]:
        leaves, pending = [], [self._root]
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            if not node.children and node.parent is not None:
                leaves.append(node)
        return leaves
