"""Which token sequences have their keys and values kept, and in which slots: a radix tree over token ids."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence


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
    """Slots are the numbers from 0 to `capacity`. The ends of what was used longest ago make room for new tokens."""

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
