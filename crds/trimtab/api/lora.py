"""Low-rank adapters: what a policy learns where its model stays as it is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import ListSet

LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ALL_TARGETS: tuple[LoraTarget, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_DEFAULT_ALPHA = 2
"""Times the rank."""


class Lora(ApiModel):
    """Adapters of low rank: to the output of a target, whose weights stay as they are, alpha/rank·B·A·input is added.
    A and B are what is trained, checkpointed and published."""

    rank: Annotated[int, Field(ge=1, le=256)]
    """Rows of A and columns of B."""
    alpha: Annotated[float, Field(gt=0, le=4096)] | None = None
    """Adapters are scaled by alpha/rank; absent, alpha is twice the rank."""
    targets: Annotated[tuple[LoraTarget, ...], ListSet(), Field(min_length=1, max_length=len(ALL_TARGETS))] = (
        ALL_TARGETS
    )
    """Projections of every layer that have an adapter: of attention q_proj, k_proj, v_proj and o_proj, of the MLP
    gate_proj, up_proj and down_proj."""

    @property
    def full_alpha(self) -> float:
        """What the adapters' files call lora_alpha."""
        return float(_DEFAULT_ALPHA * self.rank) if self.alpha is None else self.alpha

    @property
    def scale(self) -> float:
        return self.full_alpha / self.rank
