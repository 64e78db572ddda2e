"""How tokens are drawn from a policy."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.scalars import Fraction, PositiveCount


class Sampling(ApiModel):
    """Sampling settings. The defaults leave the policy's distribution untouched. Where tokens are left out, recorded
    logprobs and the trainer's are those of what is left; all three limits are of the whole distribution at the
    temperature."""

    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Divides the logits; 0 takes the most likely token."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with this total probability; 1 uses all. Training on engine sglang needs
    topK beside it."""
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] = -1
    """Sample from the k most likely tokens; -1 uses all. At most 64 to train on engine sglang."""
    min_p: Fraction = 0.0
    """Leave out tokens that are less likely than this share of the likeliest; 0 uses all. Training on engine sglang
    needs topK beside it, and no topP."""
    max_tokens: PositiveCount = 1024
    """Tokens a policy may produce in one turn; a longer answer is cut and marked truncated."""
    stop: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], Field(max_length=16)] = ()
    """Texts that end a turn, besides the model's own end token."""
