"""One operator works, the others wait: a Lease in coordination.k8s.io, held by the operator that renews it.

Clocks of machines are not compared: a candidate takes over when the lease has not changed for its whole duration by
the candidate's own clock. The holder gives up well before that. What a holder does that does not know yet that it lost
the lease is harmless: names are deterministic, deletions name a uid, statuses a version.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Conflict, KubeError
from trimtab.kube.resources import LEASES, Object
from trimtab.kube.timestamps import micro_timestamp

_log = structlog.get_logger(__name__)


class LeadershipLost(RuntimeError):
    """Another operator may be at work by now."""


@dataclass
class _Sighting:
    """A version of the lease and when it was first seen, by our own clock."""

    version: str
    at: float


class Leadership:
    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration_s: int,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration_s = duration_s
        self._wall = wall
        self._monotonic = monotonic
        self._lease: Object | None = None
        self._renewed_at = 0.0

    @property
    def _retry_s(self) -> float:
        return self._duration_s / 5

    async def acquire(self) -> None:
        """Waits until the lease is ours."""
        seen: _Sighting | None = None
        waiting_for = ""
        while True:
            began = self._monotonic()
            try:
                lease = await self._client.get_or_none(LEASES, self._name, namespace=self._namespace)
                if lease is None:
                    await self._take(None, began=began)
                    return
                version = str(lease["metadata"]["resourceVersion"])
                if seen is None or seen.version != version:
                    seen = _Sighting(version=version, at=began)
                holder = str(lease["spec"].get("holderIdentity") or "")
                lasts_s = float(lease["spec"].get("leaseDurationSeconds") or self._duration_s)
                if not holder or holder == self._identity or began - seen.at > lasts_s:
                    await self._take(lease, began=began)
                    return
                if holder != waiting_for:
                    waiting_for = holder
                    _log.info("waiting_for_lease", holder=holder)
            except Conflict:
                pass  # another operator was faster
            except KubeError as error:
                _log.warning("lease_not_read", error=str(error))
            await asyncio.sleep(self._retry_s * random.uniform(0.8, 1.2))  # noqa: S311 - not for secrets

    async def hold(self) -> None:
        """Renews it for ever. Raises LeadershipLost in time, before another operator can have taken it, or at once when
        one has."""
        while True:
            await asyncio.sleep(self._retry_s)
            began = self._monotonic()
            try:
                async with asyncio.timeout(max(0.1, self._give_up_at() - began)):
                    await self._take(self._lease, began=began)
            except Conflict:
                await self._look_again()
            except (KubeError, TimeoutError) as error:
                _log.warning("lease_not_renewed", error=str(error))
            if self._monotonic() > self._give_up_at():
                raise LeadershipLost("the lease could not be renewed in time")

    @property
    def lease_uid(self) -> str:
        """The same for all operators that follow one another, and for no other."""
        if self._lease is None:
            raise RuntimeError("the lease was never held")
        return str(self._lease["metadata"]["uid"])

    async def release(self) -> None:
        """So that the next one need not wait."""
        if self._lease is None:
            return
        freed = {**self._lease, "spec": {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}
        try:
            async with asyncio.timeout(self._retry_s):
                await self._client.replace(LEASES, self._name, freed, namespace=self._namespace)
        except (KubeError, TimeoutError) as error:
            _log.warning("lease_not_released", error=str(error))

    def _give_up_at(self) -> float:
        return self._renewed_at + self._duration_s * 2 / 3

    async def _look_again(self) -> None:
        """A conflict: our own write that we heard nothing of, a person's edit, or another holder."""
        try:
            lease = await self._client.get_or_none(LEASES, self._name, namespace=self._namespace)
        except KubeError as error:
            _log.warning("lease_not_read", error=str(error))
            return
        if lease is None or lease["spec"].get("holderIdentity") != self._identity:
            raise LeadershipLost("another operator holds the lease")
        self._lease = lease

    async def _take(self, lease: Object | None, *, began: float) -> None:
        now = micro_timestamp(self._wall())
        before: dict[str, Any] = {} if lease is None else dict(lease["spec"])
        changes = before.get("holderIdentity") != self._identity
        spec = {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._duration_s,
            "renewTime": now,
        }
        if changes:
            spec |= {"acquireTime": now, "leaseTransitions": int(before.get("leaseTransitions") or 0) + 1}
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            self._lease = await self._client.create(
                LEASES, {"metadata": metadata, "spec": spec}, namespace=self._namespace
            )
        else:
            body = {**lease, "spec": spec}
            self._lease = await self._client.replace(LEASES, self._name, body, namespace=self._namespace)
        # From before the request: the server's clock may have started then.
        self._renewed_at = began
