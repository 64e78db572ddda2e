"""GRPO: the clipped surrogate, averaged over the tokens of a sequence and then over the sequences of the step."""

from __future__ import annotations

import torch


def grpo_loss(
    logprobs: torch.Tensor,
    *,
    sampled_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> torch.Tensor:
    """The sum over these sequences. Sums add up, however the step is cut up; divided by the number of its sequences,
    which is known when the last of them is there, they are the step's loss.

    `logprobs`, `sampled_logprobs` and `mask` are (sequences, tokens), `advantages` is (sequences,). The ratio is taken
    to the policy that sampled the token, whatever its version.
    """
    ratio = torch.exp(logprobs - sampled_logprobs)
    advantage = advantages[:, None]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    lengths = mask.sum(dim=1).clamp(min=1)
    per_sequence = (surrogate * mask).sum(dim=1) / lengths
    return -per_sequence.sum()
