"""Which source each prompt comes from, and which stream each group of a batch: a fixed cycle of slots, so that both the
source of place n and how many places before it were that source's are looked up.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush

SLOTS = 1000


class MixingSchedule:
    """Slots of the sources, by name and weight. After any number of places each source is less than one place off its
    share of the slots. Where two have the same claim to a slot the seed decides, never the order in the manifest."""

    def __init__(self, weights: Mapping[str, float], *, seed: int) -> None:
        ranks = [hashlib.sha256(f"{seed}/{name}".encode()).digest() for name in weights]
        self.shares = _shares(list(weights.values()), ranks, slots=SLOTS if len(weights) > 1 else 1)
        self.period = sum(self.shares)
        self._slots = _spread(self.shares, ranks)
        self._slots_of: list[list[int]] = [[] for _ in self.shares]
        # Of each slot, how many slots before it in the cycle belong to the same source.
        self._before: list[int] = []
        self.names = tuple(weights)
        for slot, source in enumerate(self._slots):
            self._before.append(len(self._slots_of[source]))
            self._slots_of[source].append(slot)

    def at(self, position: int) -> tuple[int, int]:
        """The source of a place, and how many of the places before it are its own."""
        cycle, slot = divmod(position, self.period)
        source = self._slots[slot]
        return source, cycle * self.shares[source] + self._before[slot]

    def reaching(self, source: int, count: int) -> int:
        """The least number of places, from the first, among which `count`, at least one, are from a source."""
        cycles, rest = divmod(count - 1, self.shares[source])
        return cycles * self.period + self._slots_of[source][rest] + 1

    def spread(self, begin: int, count: int) -> dict[str, int]:
        """How many of the places from `begin` on are each source's."""
        return {
            name: self._until(source, begin + count) - self._until(source, begin)
            for source, name in enumerate(self.names)
        }

    def _until(self, source: int, end: int) -> int:
        cycles, rest = divmod(end, self.period)
        return cycles * self.shares[source] + bisect_left(self._slots_of[source], rest)


def _shares(weights: Sequence[float], ranks: Sequence[bytes], *, slots: int) -> list[int]:
    """Slots in proportion to the weights, by largest remainder; who would have less than one slot has one."""
    exact = [Fraction(weight) for weight in weights]
    ideal: dict[int, Fraction] = {}
    large = set(range(len(exact)))
    while True:
        left, total = slots - (len(exact) - len(large)), sum(exact[number] for number in large)
        ideal = {number: exact[number] * left / total for number in large}
        small = {number for number, share in ideal.items() if share < 1}
        if not small:
            break
        large -= small
    shares = [int(ideal.get(number, Fraction(1))) for number in range(len(exact))]
    missing = slots - sum(shares)
    for number in sorted(large, key=lambda number: (shares[number] - ideal[number], ranks[number]))[:missing]:
        shares[number] += 1
    return shares


def _spread(shares: Sequence[int], ranks: Sequence[bytes]) -> list[int]:
    """Each slot goes, of the sources whose next turn has begun, to the one whose turn ends first. With the slots of a
    source as jobs of one machine that is earliest deadline first, which meets all deadlines at full load: turn k of a
    source with s of n slots falls between k * n / s and (k + 1) * n / s."""
    period = sum(shares)
    given = [0] * len(shares)
    beginning: list[list[int]] = [list(range(len(shares))), *([] for _ in range(period))]
    """Sources by the slot from which on their next turn may be."""
    due: list[tuple[int, bytes, int]] = []
    slots = []
    for slot in range(period):
        for number in beginning[slot]:
            heappush(due, (-(-(given[number] + 1) * period // shares[number]), ranks[number], number))
        _, _, chosen = heappop(due)
        given[chosen] += 1
        beginning[max(slot + 1, given[chosen] * period // shares[chosen])].append(chosen)
        slots.append(chosen)
    return slots
