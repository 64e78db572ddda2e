"""What could not be done as the agent asked, or not token by token: counted for each episode and for the worker."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from trimtab.fabric.metrics import Metrics


class Counted(StrEnum):
    """Also the name of a part of the reward, behind `gateway.`."""

    TURNS = "turns"
    """That were sampled."""
    ECHOED = "echoed"
    """Turns in a history that were replaced by their tokens."""
    UNMATCHED = "unmatched"
    """Messages of the assistant's that nobody sampled there: edited, reordered, the agent's own. Text, not trained."""
    REWRITTEN = "rewritten"
    """Turns that the template showed otherwise later. Text in the later lineage, trained in the earlier one."""
    LINEAGES = "lineages"
    """Conversations, each of which is a row."""
    PARTED = "parted"
    """Histories that went on otherwise than before."""
    OVERRIDDEN = "overridden"
    """Settings that the agent wanted and a policy that learns does not take."""
    OFF_SCHEMA = "off_schema"
    """Answers that were not of the schema asked for."""
    LEFT_OUT = "left_out"
    """Sampled tokens of conversations beyond those that an episode may have."""


class GatewayMetrics:
    """One worker."""

    def __init__(self, metrics: Metrics) -> None:
        self._counted = metrics.counter(
            "rollout_gateway_events", "What agents asked through the gateway, by what came of it", ["event"]
        )
        for event in Counted:
            self._counted.labels(event.value)

    def count(self, event: Counted, times: int) -> None:
        self._counted.labels(event.value).inc(times)


class Tally:
    """One episode."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._counts: Counter[Counted] = Counter()

    def count(self, event: Counted, times: int = 1) -> None:
        if times:
            self._counts[event] += times
            self._metrics.count(event, times)

    def __getitem__(self, event: Counted) -> int:
        return self._counts[event]

    def parts(self) -> dict[str, float]:
        """As parts of a reward: those that happened."""
        return {f"gateway.{event.value}": float(self._counts[event]) for event in Counted if self._counts[event]}
