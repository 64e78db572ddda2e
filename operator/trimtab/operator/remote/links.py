"""All other clusters that pools are in, each with a Link of its own that lives as long as a pool needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from trimtab.kube.client import KubeClient
from trimtab.kube.resources import Key
from trimtab.operator.metrics import OperatorMetrics
from trimtab.operator.reconcile.placement import Placement
from trimtab.operator.remote.link import Link
from trimtab.operator.settings import RemoteSettings

_log = structlog.get_logger(__name__)
_TIDY_S = 30.0
_REVIVED_AFTER_S = 30.0


class Links:
    def __init__(
        self, home: KubeClient, *, settings: RemoteSettings, installation: str, metrics: OperatorMetrics
    ) -> None:
        self.installation = installation
        self._home = home
        self._settings = settings
        self._metrics = metrics
        self._links: dict[Placement, Link] = {}
        self._tasks: dict[Placement, asyncio.Task[None]] = {}
        self._wake_pool: Callable[[Key], None] = lambda pool: None
        self._wake_all: Callable[[Placement], None] = lambda placement: None

    def listen(self, *, wake_pool: Callable[[Key], None], wake_all: Callable[[Placement], None]) -> None:
        """Before the first link: `wake_pool` is told of pools whose pods have changed, `wake_all` of clusters that came
        or went."""
        self._wake_pool, self._wake_all = wake_pool, wake_all

    def to(self, placement: Placement) -> Link:
        """The link there; it begins to connect at the first call."""
        link = self._links.get(placement)
        if link is None:
            link = Link(
                self._home,
                placement,
                settings=self._settings,
                installation=self.installation,
                wake_pool=self._wake_pool,
                changed=self._wake_all,
                on_request=self._metrics.request,
            )
            self._links[placement] = link
            task = asyncio.create_task(link.run(), name=f"link to {placement}")
            task.add_done_callback(lambda ended: self._ended(placement, ended))
            self._tasks[placement] = task
        return link

    def note_reach(self, pool: Key, reachable: bool | None) -> None:
        """For the metric; None for a pool that is gone or at home."""
        self._metrics.remote_reachable(pool.namespace, pool.name, reachable)

    async def run(self, needed: Callable[[], Iterable[Placement]]) -> None:
        """Until cancelled: ends links that no pool needs."""
        try:
            while True:
                await asyncio.sleep(_TIDY_S)
                for placement in set(self._tasks) - set(needed()):
                    self._tasks[placement].cancel()
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, placement: Placement, task: asyncio.Task[None]) -> None:
        """Forgotten, so that the next pool that asks for it gets a new one."""
        self._tasks.pop(placement, None)
        self._links.pop(placement, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("link_died", placement=str(placement), error=repr(error))
            # Whatever it was, it may happen again at once.
            task.get_loop().call_later(_REVIVED_AFTER_S, self._wake_all, placement)
