"""What a loss sees: the trained tokens of some sequences, laid side by side without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class LossTokens:
    """All tensors but `lengths` have one element per trained token, those of one sequence together."""

    logprobs: torch.Tensor
    """Of the policy as it is now; the only one that gradients flow through."""
    old_logprobs: torch.Tensor
    """What the probability ratio is taken to: the policy that sampled, or the one at the beginning of the step."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """Importance weights of the token, ones where nothing is corrected."""
    sequences: torch.Tensor
    """Number of the token's sequence, as a position in `lengths`."""
    lengths: torch.Tensor
    """Trained tokens of each sequence. Some have none."""
    longest_answer: int
    """Tokens that an answer may have."""

    @property
    def log_ratio(self) -> torch.Tensor:
        return self.logprobs - self.old_logprobs

    def sequence_sums(self, values: torch.Tensor) -> torch.Tensor:
        sums = torch.zeros(len(self.lengths), dtype=values.dtype, device=values.device)
        return sums.index_add(0, self.sequences, values)

    def sequence_means(self, values: torch.Tensor) -> torch.Tensor:
        """0 for a sequence without tokens."""
        return self.sequence_sums(values) / self.lengths.clamp(min=1)
