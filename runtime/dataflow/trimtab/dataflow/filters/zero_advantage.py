"""Dynamic sampling (DAPO): groups whose rewards are all equal have advantage zero everywhere and are left out."""

from __future__ import annotations

from trimtab.dataflow.outcomes import GroupOutcome


class ZeroAdvantage:
    """Keeps a group whole or not at all. A single sample has nothing to be compared with, so it is left out too."""

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        if group.is_zero_variance:
            return frozenset()
        return frozenset(sample.index for sample in group.samples)
