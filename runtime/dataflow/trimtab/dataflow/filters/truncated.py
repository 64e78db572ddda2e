"""Samples that were cut off got their reward for the limit, not for what they said."""

from __future__ import annotations

from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.fabric.wire.trajectory import Finish


class Truncated:
    """Leaves out samples cut at maxTokens. One that used up its turns had its say in each of them and stays."""

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        return frozenset(sample.index for sample in group.samples if sample.finish is not Finish.LENGTH)
