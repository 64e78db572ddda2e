"""What a curator has learnt, as snapshots hold it: marked with whose it is, because the manifest may name another
curator by the time it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.api.data import Curator as CuratorSettings
from trimtab.dataflow.curators.contract import Curator


class Lessons:
    """A curator's memory. What another curator has learnt is not given to it: it begins with what happens next."""

    def __init__(self, curator: Curator, settings: CuratorSettings) -> None:
        self._curator = curator
        self._kind = "none"
        if settings.greso is not None:
            self._kind = "greso"
        elif settings.curriculum is not None:
            self._kind = "curriculum"
        elif settings.custom is not None:
            self._kind = settings.custom.entrypoint

    def state(self) -> dict[str, Any]:
        return {"curator": self._kind, "state": self._curator.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("curator") == self._kind:
            self._curator.restore(state["state"])
