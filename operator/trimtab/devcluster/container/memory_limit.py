"""A container that uses more memory than its limit is killed, as a kernel would do it in a real container. Here it is
looked at twice a second, so one that grows fast may have more for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from trimtab.devcluster.container.process import ContainerProcess
from trimtab.devcluster.quantity import quantity

_LOOK_S = 0.5


def memory_limit(container: Mapping[str, Any]) -> int | None:
    """In bytes; None where it has none."""
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return None if limit is None else int(quantity(limit))


async def kill_beyond(process: ContainerProcess, limit: int) -> None:
    """Returns when it has killed the process; to be cancelled when that ends by itself."""
    while True:
        if await asyncio.to_thread(process.memory_bytes) > limit:
            process.kill()
            return
        await asyncio.sleep(_LOOK_S)
