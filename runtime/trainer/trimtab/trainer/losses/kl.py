"""The distance to a fixed reference model, estimated on the tokens that were sampled."""

from __future__ import annotations

from typing import Literal

import torch

# exp(q) of a token that the reference holds for impossible, or the policy for far likelier, is cut off here.
_MAX_LOG_RATIO = 20.0


def kl_divergence(
    logprobs: torch.Tensor, *, reference_logprobs: torch.Tensor, estimator: Literal["k1", "k2", "k3"]
) -> torch.Tensor:
    """Per token. k1 has the right mean and a gradient whose mean is zero, so it takes the gradient of k2, whose mean is
    that of the divergence.
    """
    log_ratio = (reference_logprobs - logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    square = log_ratio.square() / 2
    match estimator:
        case "k1":
            return -log_ratio.detach() + square - square.detach()
        case "k2":
            return square
        case "k3":
            return torch.exp(log_ratio) - 1 - log_ratio
