"""How long weights take to reach an engine, and for how much of that it is paused."""

from __future__ import annotations

from enum import StrEnum

from trimtab.fabric.metrics import Metrics

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)


class SwapKind(StrEnum):
    """What the engine was given: all the weights, or the elements that changed."""

    WHOLE = "whole"
    SPARSE = "sparse"


class SwapMetrics:
    """For all policies of a worker."""

    def __init__(self, metrics: Metrics) -> None:
        labels = ("policy", "kind")
        self._refresh = metrics.histogram(
            "weight_refresh_seconds", "From news of a version to its being served.", labels, buckets=_BUCKETS
        )
        self._pause = metrics.histogram(
            "weight_swap_pause_seconds", "Of that, the time for which the engine was paused.", labels, buckets=_BUCKETS
        )

    def swapped(self, *, policy: str, kind: SwapKind, refresh_s: float, pause_s: float) -> None:
        self._refresh.labels(policy, kind.value).observe(refresh_s)
        self._pause.labels(policy, kind.value).observe(pause_s)
