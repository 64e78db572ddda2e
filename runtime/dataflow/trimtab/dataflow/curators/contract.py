"""What a curator is. Write your own as a class with these methods and name it in `data.curator.custom`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from trimtab.dataflow.outcomes import GroupOutcome


class Curator(Protocol):
    """Everything it learns comes through `observe` and `stepped`, in the order of the ledger, and a restart repeats
    those calls: a curator must depend on nothing else, neither on the time nor on chance of its own.
    """

    def admits(self, prompt_id: str, content: Mapping[str, Any], *, draw: float) -> bool:
        """Whether this prompt is rolled out now. `draw` is uniform in [0, 1) and belongs to the place in the run."""

    def observe(self, outcome: GroupOutcome) -> None:
        """A group with all its samples, once: when filters have judged it, and without filters when it is trained on or
        has got too stale.
        """

    def stepped(self, policy: str, step: int) -> None:
        """A policy was granted this step."""

    def groups_needed(self, missing: int) -> int:
        """How many groups to ask for to fill so many places. Asked when groups without advantage are left out; what
        comes in excess may become too stale, and is then given up.
        """

    def state(self) -> dict[str, Any]:
        """All that it has learnt, in plain values, for the ledger to keep when it forgets old records."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""


class PassThrough:
    """What a job without a curator gets: every prompt is rolled out."""

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
