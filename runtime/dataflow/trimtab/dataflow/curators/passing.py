"""No choice at all: what a job without a curator gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.dataflow.outcomes import GroupOutcome


class PassThrough:
    """Every prompt is rolled out."""

    def admits(self, prompt_id: str, content: Mapping[str, Any], *, draw: float) -> bool:
        return True

    def observe(self, outcome: GroupOutcome) -> None:
        """There is nothing to learn."""

    def stepped(self, policy: str, step: int) -> None:
        """There is nothing to adjust."""

    def groups_needed(self, missing: int) -> int:
        return missing

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """There is nothing to take back."""
