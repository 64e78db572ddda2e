"""What a loss sees: the trained tokens of some sequences, laid side by side without padding.

An answer is all that a policy wrote in an episode. It may be cut into several sequences, which need not all be here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, kw_only=True)
class LossTokens:
    """Tensors have one element per trained token, those of one sequence together, unless it is said otherwise."""

    logprobs: torch.Tensor
    """Of the policy as it is now; the only one that gradients flow through."""
    old_logprobs: torch.Tensor
    """What the probability ratio is taken to: the policy that sampled, or the one at the beginning of the step."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """Importance weights of the token, ones where nothing is corrected."""
    sequences: torch.Tensor
    """Number of the token's sequence, as a position in `answer_lengths`."""
    answer_lengths: torch.Tensor
    """Of each sequence, the trained tokens of its whole answer. Some have none."""
    longest_answer: int
    """Tokens that an answer may have."""
    answer_log_ratios: torch.Tensor | None = None
    """Of each sequence, the mean log ratio of its whole answer; None where every answer is one sequence."""
    values: torch.Tensor | None = None
    """What the value head says of it now, where there is one. Gradients flow through it then, and `logprobs` are those
    of sampling."""
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """By stage, what it computed of the token."""

    @property
    def log_ratio(self) -> torch.Tensor:
        return self.logprobs - self.old_logprobs

    def shares_of_means(self, values: torch.Tensor) -> torch.Tensor:
        """Of each sequence, what it adds to the mean over its answer; 0 where it has no tokens."""
        sums = torch.zeros(len(self.answer_lengths), dtype=values.dtype, device=values.device)
        return sums.index_add(0, self.sequences, values) / self.answer_lengths.clamp(min=1)

    def mean_log_ratios(self) -> torch.Tensor:
        """Of each sequence, over its whole answer; no part of the gradient."""
        if self.answer_log_ratios is not None:
            return self.answer_log_ratios
        return self.shares_of_means(self.log_ratio.detach())
