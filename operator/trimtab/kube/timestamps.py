"""Times as the API server writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(epoch_s: float) -> str:
    """To the second, as metav1.Time has it."""
    return datetime.fromtimestamp(int(epoch_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(epoch_s: float) -> str:
    """As metav1.MicroTime has it."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
