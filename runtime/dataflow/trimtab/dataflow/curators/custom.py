"""Stands between a curator of the user's and the ledger: whatever it raises is about the manifest, and says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trimtab.dataflow.curators.contract import Curator
from trimtab.dataflow.outcomes import GroupOutcome
from trimtab.fabric.pod import JobMisconfigured

Result = TypeVar("Result")


class Checked:
    """Asks another curator. `entrypoint` is what messages call it."""

    def __init__(self, inner: Curator, *, entrypoint: str) -> None:
        self._inner = inner
        self._entrypoint = entrypoint

    def admits(self, prompt_id: str, content: Mapping[str, Any], *, draw: float) -> bool:
        return bool(self._asked("admits", lambda: self._inner.admits(prompt_id, content, draw=draw)))

    def observe(self, outcome: GroupOutcome) -> None:
        self._asked("observe", lambda: self._inner.observe(outcome))

    def stepped(self, policy: str, step: int) -> None:
        self._asked("stepped", lambda: self._inner.stepped(policy, step))

    def groups_needed(self, missing: int) -> int:
        needed = self._asked("groups_needed", lambda: self._inner.groups_needed(missing))
        if not isinstance(needed, int):
            raise JobMisconfigured(f"{self._entrypoint}.groups_needed answered {needed!r:.60}; return a whole number")
        return needed

    def state(self) -> dict[str, Any]:
        return self._asked("state", self._inner.state)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._asked("restore", lambda: self._inner.restore(state))

    def _asked(self, method: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except Exception as error:
            raise JobMisconfigured(
                f"data.curator.custom: {self._entrypoint}.{method} raised {type(error).__name__}: {error}"
            ) from error
