"""Times as the API server writes them."""

from __future__ import annotations

import datetime


def timestamp(epoch_s: float) -> str:
    """To the second, as metav1.Time has it."""
    return datetime.datetime.fromtimestamp(int(epoch_s), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(epoch_s: float) -> str:
    """As metav1.MicroTime has it."""
    return datetime.datetime.fromtimestamp(epoch_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def epoch(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
