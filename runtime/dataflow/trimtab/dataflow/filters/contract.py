"""What a filter is. Write your own as a class with this method and name it in `data.filter.custom`."""

from __future__ import annotations

from typing import Protocol

from trimtab.dataflow.outcomes import GroupOutcome


class Filter(Protocol):
    """A pure function of the group: it is asked once, and what it said is recorded."""

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        """Indices of the samples to keep. Without any the group is left out, and its prompt's place goes to another."""
