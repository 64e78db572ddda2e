"""Rows and columns too large for a message of NATS: put into object storage by workers, fetched and verified by ranks.

A column lies where the rows that it was computed of lie. It is younger than they are, so whoever collects what no
message of the stream of trajectories can claim leaves it alone for as long as they are needed.
"""

from __future__ import annotations

import hashlib

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ChecksumMismatch, InvalidKey, ObjectNotFound, ObjectTooLarge
from trimtab.fabric.wire.claim import ClaimCheck
from trimtab.fabric.wire.column import Column
from trimtab.fabric.wire.trajectory import Trajectory

_DEADLINE_S = 60.0


class ClaimUnusable(ValueError):
    """There is nothing under a claim, or something else than was claimed: it would be the same on every attempt."""


class RowClaims:
    """Deposits and redeems. ObjectStoreError is raised for a store that is away, or refuses us."""

    def __init__(self, store: ObjectStore, *, deadline_s: float = _DEADLINE_S) -> None:
        self._store = store
        self._deadline_s = deadline_s

    async def deposit(self, trajectory: Trajectory, frame: bytes) -> ClaimCheck:
        """The same row deposited twice is one object."""
        return await self._deposit(frame, name=trajectory.trajectory_id, policy=trajectory.policy)

    async def deposit_column(self, column: Column, frame: bytes) -> ClaimCheck:
        return await self._deposit(frame, name=f"{column.group_id}.{column.stage}", policy=column.policy)

    async def _deposit(self, frame: bytes, *, name: str, policy: str) -> ClaimCheck:
        claim = ClaimCheck(
            trajectory_id=name, policy=policy, size_bytes=len(frame), sha256=hashlib.sha256(frame).hexdigest()
        )
        await self._store.put(claim.object_key, frame, deadline_s=self._deadline_s)
        return claim

    async def redeem(self, claim: ClaimCheck) -> bytes:
        """The frame. Raises ClaimUnusable where it is gone or altered."""
        try:
            stored = await self._store.get(claim.object_key, max_bytes=claim.size_bytes, deadline_s=self._deadline_s)
        except (ObjectNotFound, ObjectTooLarge, ChecksumMismatch, InvalidKey) as error:
            raise ClaimUnusable(str(error)) from None
        if hashlib.sha256(stored.body).hexdigest() != claim.sha256:
            raise ClaimUnusable(f"{self._store.where(claim.object_key)} is not what was claimed")
        return stored.body
