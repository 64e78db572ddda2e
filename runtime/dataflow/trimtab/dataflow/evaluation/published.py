"""The newest weights that pools can get, by policy."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.weights import WeightPointer

_log = structlog.get_logger(__name__)


class PublishedVersions:
    """Follows the pointers that trainers write. `on_change` is called with every one."""

    def __init__(self, *, on_change: Callable[[], None]) -> None:
        self.versions: dict[str, int] = {}
        self._on_change = on_change

    async def follow(self, weights: KeyValue) -> None:
        async with KvWatch(weights) as watch:
            async for change in watch:
                if isinstance(change, Entry):
                    self._note(change)

    def _note(self, entry: Entry) -> None:
        try:
            pointer = decode(entry.value, WeightPointer)
        except WireError as error:
            _log.warning("weights_unreadable", key=entry.key, reason=str(error))
            return
        self.versions[pointer.policy] = pointer.version
        self._on_change()
