"""How often a cluster that is away is asked, by what its server would say each time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from tests.support.polling import eventually
from tests.support.remote.kubeconfigs import kubeconfig, written
from trimtab.fabric.backoff import FullJitter
from trimtab.kube.access import ClusterAccess
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Forbidden, KubeError, Unreachable
from trimtab.operator.reconcile.placement import Placement
from trimtab.operator.remote.link import Connection, Link
from trimtab.operator.settings import RemoteSettings

AWAY = Unreachable("get /x: no answer")
FORBIDS = Forbidden("no", code=403)


class ScriptedLink(Link):
    """Each attempt to connect ends as the script says; the last is repeated. Waits take no time and are noted."""

    def __init__(self, *script: KubeError) -> None:
        super().__init__(
            cast(KubeClient, None),  # nothing is asked of the cluster at home
            Placement(home="team", secret="far", key="kubeconfig", namespace="guests"),
            settings=RemoteSettings(retry_s=5.0, longest_retry_s=320.0),
            installation="op",
            wake_pool=lambda key: None,
            changed=lambda placement: None,
            on_request=lambda *request: None,
        )
        self.script = list(script)
        self.ceilings: list[float] = []
        self._backoff = FullJitter(base_s=5.0, cap_s=320.0, uniform=self._note)

    def _note(self, least: float, most: float) -> float:
        self.ceilings.append(most)
        return 0.001

    async def _kubeconfig(self) -> bytes:
        return written(kubeconfig())

    @asynccontextmanager
    async def _connected(self, access: ClusterAccess) -> AsyncIterator[Connection]:
        raise self.script.pop(0) if len(self.script) > 1 else self.script[0]
        yield


async def _ceilings(link: ScriptedLink, count: int) -> list[float]:
    running = asyncio.create_task(link.run())
    try:
        await eventually(lambda: len(link.ceilings) >= count, timeout_s=10.0)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return link.ceilings[:count]


async def test_one_that_stays_away_is_asked_less_and_less() -> None:
    assert await _ceilings(ScriptedLink(AWAY), 8) == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 320.0]


async def test_one_that_answers_again_is_soon_asked_again_though_it_still_forbids_everything() -> None:
    link = ScriptedLink(AWAY, AWAY, AWAY, AWAY, FORBIDS)
    assert await _ceilings(link, 6) == [5.0, 10.0, 20.0, 40.0, 5.0, 10.0]
