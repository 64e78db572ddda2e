"""Importance weights for what differs between the policy that sampled and the one that trains: kernels, precision,
version. They multiply a token's loss and are no part of the gradient.
"""

from __future__ import annotations

import torch

from trimtab.api.algorithm import Correction
from trimtab.trainer.losses.clipping import bounded_ratio


def importance_weights(
    logprobs: torch.Tensor, *, sampled_logprobs: torch.Tensor, correction: Correction
) -> torch.Tensor:
    """Truncate caps the weight (TIS). Mask leaves out tokens whose weight is beyond the limits (IcePop)."""
    weights = bounded_ratio(logprobs.detach() - sampled_logprobs)
    if correction.type == "Truncate":
        return weights.clamp(correction.low, correction.high)
    if correction.type == "Mask":
        return weights * ((weights >= correction.low) & (weights <= correction.high))
    return weights
