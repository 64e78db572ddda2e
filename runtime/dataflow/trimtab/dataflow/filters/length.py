"""Limits on how long a sample may be."""

from __future__ import annotations

from trimtab.api.data import LengthFilter
from trimtab.dataflow.outcomes import GroupOutcome


class Length:
    """Keeps samples whose number of trained tokens is within the limits, both of them included."""

    def __init__(self, settings: LengthFilter) -> None:
        self._min_tokens = settings.min_tokens
        self._max_tokens = settings.max_tokens

    def kept(self, group: GroupOutcome) -> frozenset[int]:
        return frozenset(sample.index for sample in group.samples if self._fits(sample.trained_tokens))

    def _fits(self, tokens: int) -> bool:
        return self._min_tokens <= tokens and (self._max_tokens is None or tokens <= self._max_tokens)
