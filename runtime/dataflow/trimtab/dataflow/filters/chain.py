"""Several filters, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trimtab.dataflow.filters.contract import Filter
from trimtab.dataflow.outcomes import GroupOutcome


class Chain:
    """Each filter sees only what those before it kept, and is not asked about nothing. Without filters all is kept."""

    def __init__(self, filters: Sequence[Filter]) -> None:
        self._filters = tuple(filters)

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        for one in self._filters:
            if not group.samples:
                break
            kept = one.kept(group)
            group = replace(group, samples=tuple(sample for sample in group.samples if sample.index in kept))
        return frozenset(sample.index for sample in group.samples)
