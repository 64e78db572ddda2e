"""Easy prompts first: the share of the prompts in play, sorted by difficulty, grows linearly over the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from trimtab.api.data import Curriculum as CurriculumSettings
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.fabric.pod import JobMisconfigured


def difficulty_of(prompt_id: str, content: Mapping[str, Any], *, column: str) -> float:
    """The difficulty of a prompt. Raises JobMisconfigured when it has none."""
    value = content.get(column)
    # True is a number to Python, but no difficulty; NaN has no place in any order.
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    found = f"{value!r:.60}" if column in content else "no such column"
    raise JobMisconfigured(
        f"data.curator.curriculum: prompt {prompt_id!r} needs a number in column {column!r} and has {found}; "
        "give every prompt a difficulty or name another difficultyColumn"
    )


class Curriculum:
    """At step t of `steps`, the easiest start + (1 - start)·t/steps of the prompts are in play.

    Prompts as difficult as the hardest in play may be many, as with school grades. Each time one comes up, the draw
    decides, so that on average the share is as it should be; a fixed choice among few prompts could come out empty.

    With several policies the one furthest on sets the pace: one that has finished would hold the others back.
    """

    def __init__(self, settings: CurriculumSettings, difficulties: Iterable[float]) -> None:
        """`difficulties` are those of all prompts, in any order."""
        self._settings = settings
        self._difficulties = np.sort(np.fromiter(difficulties, dtype=np.float64))
        if not len(self._difficulties):
            raise JobMisconfigured("data.curator.curriculum: there are no prompts to put in order")
        self._reach(0)

    def admits(self, prompt_id: str, content: Mapping[str, Any], *, draw: float) -> bool:
        difficulty = difficulty_of(prompt_id, content, column=self._settings.difficulty_column)
        if difficulty == self._hardest:
            return draw < self._share_of_hardest
        return difficulty < self._hardest

    def observe(self, outcome: GroupOutcome) -> None:
        """The order is given: outcomes do not change it."""

    def stepped(self, policy: str, step: int) -> None:
        if step + 1 > self._steps:
            self._reach(step + 1)

    def groups_needed(self, missing: int) -> int:
        return missing

    def state(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._reach(state["steps"])

    def _reach(self, steps: int) -> None:
        self._steps = steps
        start, total = self._settings.start, len(self._difficulties)
        share = start + (1.0 - start) * min(1.0, steps / self._settings.steps)
        # Rounding errors add no prompt, and there is always one.
        in_play = max(1, math.ceil(share * total - 1e-9))
        self._hardest = float(self._difficulties[in_play - 1])
        easier = int(np.searchsorted(self._difficulties, self._hardest, "left"))
        as_hard = int(np.searchsorted(self._difficulties, self._hardest, "right")) - easier
        self._share_of_hardest = (in_play - easier) / as_hard
