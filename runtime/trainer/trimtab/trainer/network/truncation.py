"""Which tokens a policy was sampled from where the manifest leaves some out: top-k, top-p and min-p.

All three are of the distribution at the sampling temperature, as the engines have it: top-k and top-p both cut the
whole distribution, not what the other has left of it. So the kept tokens are the likeliest ones down to an edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from trimtab.api.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """Sampling settings that leave tokens out; at their defaults they leave out none."""

    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, sampling: Sampling) -> Truncation:
        return cls(top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p)

    @property
    def nothing(self) -> bool:
        return self.top_k <= 0 and self.top_p >= 1.0 and self.min_p <= 0.0

    def edges(self, logits: torch.Tensor, *, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each row, the lowest logit that is kept, and which share of the tokens that have it is.

        Half precision makes many logits equal. A sampler takes any of those at the edge, all of them as likely as one
        another, so each of them has its share in what is kept.
        """
        raw = logits.float()
        ordered = self._candidates(raw)
        scaled = ordered / temperature
        kept = torch.ones_like(ordered, dtype=torch.bool)
        if self.top_p < 1.0:
            likely = torch.exp(scaled - torch.logsumexp(raw / temperature, dim=-1, keepdim=True))
            kept &= likely.cumsum(dim=-1) - likely < self.top_p
        if self.min_p > 0.0:
            kept &= scaled >= scaled[:, :1] + math.log(self.min_p)
        # None is where logits are not numbers: what comes of them says so.
        count = kept.sum(dim=-1).clamp(min=1)
        edge = ordered.gather(-1, (count - 1)[:, None])
        above, equal = (raw > edge).sum(dim=-1), (raw == edge).sum(dim=-1)
        return edge[:, 0], (count - above) / equal

    def _candidates(self, raw: torch.Tensor) -> torch.Tensor:
        """The highest logits in descending order, as many as could be kept."""
        if 0 < self.top_k < raw.shape[-1]:
            return raw.topk(self.top_k, dim=-1).values
        return raw.sort(dim=-1, descending=True).values


def kept_weights(logits: torch.Tensor, chosen: torch.Tensor, edge: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """1 for a token that is kept, its share for one at the edge, 0 for one that is left out.

    The chosen token was kept when it was drawn. Other weights may have it beyond the edge: it is kept all the same.
    """
    raw = logits.float()
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    weights = (raw > edge[:, None]).float() + share[:, None] * (raw == edge[:, None]).float()
    beyond = (tokens == chosen[:, None]) & (raw < edge[:, None])
    return torch.where(beyond, torch.ones_like(weights), weights)
