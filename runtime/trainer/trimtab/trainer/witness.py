"""How far the engines' log probabilities are from ours for the same weights, in a run whose samples are never fresh.

Samples of a version come when the trainer is some steps further. So a copy of one published version is kept until rows
that it sampled have come; a few of them are scored with it, and it makes way for the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trimtab.trainer import ranks
from trimtab.trainer.batch import PackedBatch, Row, pack
from trimtab.trainer.network.policy_network import PolicyNetwork
from trimtab.trainer.stand_in import StandIn

_ROWS = 2
"""That a rank scores in a step."""


class Witness:
    """Of one policy. All ranks make every call together."""

    def __init__(self, network: PolicyNetwork, stand_in: StandIn, *, published: torch.dtype) -> None:
        self._network = network
        self._stand_in = stand_in
        self._published = published
        self._weights: list[torch.Tensor] | None = None
        self._version = -1
        self._due = True
        self._rows: list[Row] = []
        self._oldest = float("inf")
        self.mismatch: float | None = None
        """The newest measurement: the mean absolute difference. It stands until there is another."""

    def keep(self, version: int) -> None:
        """The weights are published as this version now. Kept are two bytes of each, in bfloat16."""
        if self._due:
            self._weights = None
            self._weights = self._stand_in.copy(self._published)
            self._version = version
            self._due = False

    def notice(self, rows: Sequence[Row]) -> None:
        """Rows of the step that is under way. Those with most tokens of the kept version are remembered."""
        trained = [row for row in rows if row.trained_tokens]
        self._oldest = min([self._oldest, *(int(row.versions[1:][row.mask[1:]].min()) for row in trained)])
        found = [row for row in trained if self._sampled(row) > 0]
        self._rows = sorted([*self._rows, *found], key=self._sampled, reverse=True)[:_ROWS]

    def measure(self, *, blank: Row, device: torch.device) -> None:
        """At the end of a step, when there are no gradients: score what was noticed, if any rank noticed something."""
        rows, self._rows = self._rows, []
        oldest, self._oldest = self._oldest, float("inf")
        found, negative_oldest = ranks.maxima(bool(rows), -oldest)
        if self._weights is None:
            return
        if found:
            self.mismatch = self._distance(pack(rows or [blank], device=device), self._weights)
        # Or else all that comes was sampled later: nothing more is to be had from it.
        self._due = bool(found) or -negative_oldest > self._version

    @torch.no_grad()
    def _distance(self, batch: PackedBatch, weights: list[torch.Tensor]) -> float:
        with self._stand_in.replaced(weights):
            ours = self._network(batch).logprobs
        sampled = batch.versions == self._version
        distances = (ours - batch.sampled_logprobs).abs()[sampled]
        total, tokens = ranks.sums(float(distances.double().sum()), len(distances))
        return total / max(1.0, tokens)

    def _sampled(self, row: Row) -> int:
        """Its trained tokens that the kept version sampled, if it began the row: an engine that takes new weights amid
        an answer goes on with what the older ones made of its beginning.
        """
        versions = row.versions[1:][row.mask[1:]]
        return int((versions == self._version).sum()) if versions[0] == self._version else 0
