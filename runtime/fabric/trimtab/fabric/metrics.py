"""Prometheus metrics of one process: a registry that is passed around, never the global one, so that two parts in one
process or two tests in one run cannot collide, and one name prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

PREFIX = "trimtab_"


class Metrics:
    """Makes metrics and renders them. Names are given without the prefix and with their unit: step_seconds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)

    def counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(PREFIX + name, meaning, labels, registry=self.registry)

    def gauge(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(PREFIX + name, meaning, labels, registry=self.registry)

    def histogram(self, name: str, meaning: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> Histogram:
        return Histogram(PREFIX + name, meaning, labels, buckets=buckets, registry=self.registry)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """What a scraper with this Accept header gets, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
