"""What an object of the good team waits for the operator: from the write of its spec until its status has seen it."""

from __future__ import annotations

import asyncio
import time
from itertools import count

from benchmarks.tenancy.site import GOOD, TwoTeams
from tests.support.operator.scene import tiny_job
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import RLJOBS

_NAME = "still"
_LOOK_S = 0.02
_PAUSE_S = 0.5
_TIMEOUT_S = 120.0


class ObjectWaits:
    """Changes a job that is suspended, so that nothing but the operator has to do with it."""

    def __init__(self, teams: TwoTeams) -> None:
        self._teams = teams
        self._steps = count(11)
        teams.good.apply(tiny_job(_NAME, suspend=True))

    async def measure(self, seconds: float) -> list[float]:
        waits: list[float] = []
        end = time.monotonic() + seconds
        async with KubeClient(self._teams.good.access, user_agent="waits") as client:
            while time.monotonic() < end:
                waits.append(await self._wait(client))
                await asyncio.sleep(_PAUSE_S)
        return waits

    async def _wait(self, client: KubeClient) -> float:
        began = time.monotonic()
        async with asyncio.timeout(_TIMEOUT_S):
            written = await client.patch(RLJOBS, _NAME, {"spec": {"maxSteps": next(self._steps)}}, namespace=GOOD)
            while True:
                job = await client.get(RLJOBS, _NAME, namespace=GOOD)
                seen = (job.get("status") or {}).get("observedGeneration") or 0
                if seen >= written["metadata"]["generation"]:
                    return time.monotonic() - began
                await asyncio.sleep(_LOOK_S)
