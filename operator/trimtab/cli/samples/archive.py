"""Rows that the stream has let go of, as the trainers have archived them in object storage."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.cli.samples.choice import NothingChosen, Order, StoredRow, Wanted, chosen
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectNotFound, ObjectTooLarge
from trimtab.fabric.sample_archive import ARCHIVE, ArchiveDamaged, ArchivedRow, parse_key, read_part
from trimtab.fabric.wire.header import TrajectoryHeader
from trimtab.fabric.wire.trajectory import Trajectory

_DEADLINE_S = 60.0
_MAX_OBJECT_BYTES = 1 << 30
_PARTS_AT_HAND = 4


@dataclass
class SampleArchive:
    """What is archived of a job. Objects that cannot be read are named to `complain` and passed over."""

    store: ObjectStore
    complain: Callable[[str], None]
    _at_hand: OrderedDict[str, Mapping[int, Trajectory]] = field(default_factory=OrderedDict)
    """Objects read last, as the rows of one are mostly wanted together."""

    async def rows(self, wanted: Wanted, stored: Sequence[StoredRow]) -> tuple[list[StoredRow], Collection[int]]:
        """Those that may be among the wanted ones and are not in the stream, and all steps that are archived."""
        keys = await self._keys(wanted)
        known = {row.sequence for row in stored}
        found: list[StoredRow] = []
        for (_, step), parts in sorted(keys.items(), key=lambda one: one[0][1], reverse=True):
            if wanted.step not in (None, step + 1):
                continue
            if wanted.order is Order.NEWEST and wanted.limit is not None and len(found) >= wanted.limit:
                break
            for key in parts:
                found += [row for row in await self._read(key) if row.sequence not in known]
            if wanted.limit is not None:
                found = _narrowed(found, wanted)
        return found, {step + 1 for _, step in keys}

    async def trajectory(self, row: StoredRow) -> Trajectory | None:
        """None where it was deleted meanwhile."""
        assert row.archived_in is not None
        if row.archived_in not in self._at_hand:
            await self._read(row.archived_in)
        return self._at_hand.get(row.archived_in, {}).get(row.sequence)

    async def _keys(self, wanted: Wanted) -> dict[tuple[str, int], list[str]]:
        """By trainer and step. Which rows a trainer has had is not for its name to say: of any policy."""
        found: dict[tuple[str, int], list[str]] = {}
        async for info in self.store.scan(ARCHIVE, deadline_s=_DEADLINE_S):
            if (place := parse_key(info.key)) is not None:
                found.setdefault((place.policy, place.step), []).append(info.key)
        return found

    async def _read(self, key: str) -> list[StoredRow]:
        trainer = parse_key(key)
        assert trainer is not None
        rows: list[ArchivedRow] = []
        try:
            stored = await self.store.get(key, max_bytes=_MAX_OBJECT_BYTES, deadline_s=_DEADLINE_S)
            rows.extend(read_part(stored.body))
        except (ObjectNotFound, ObjectTooLarge, ArchiveDamaged) as error:
            self.complain(f"{self.store.where(key)} cannot be shown: {error}")
        self._at_hand[key] = {one.sequence: one.row for one in rows}
        if len(self._at_hand) > _PARTS_AT_HAND:
            self._at_hand.popitem(last=False)
        return [
            StoredRow(
                sequence=one.sequence,
                trajectory_id=one.row.trajectory_id,
                header=TrajectoryHeader.of(one.row),
                step=one.step + 1 if one.row.policy == trainer.policy else None,
                archived_in=key,
            )
            for one in rows
        ]


def is_needed(wanted: Wanted, stored: Sequence[StoredRow]) -> bool:
    """Answers of evaluations are not archived, and the newest rows are in the stream if there are enough."""
    if wanted.benchmark is not None:
        return False
    if wanted.order is not Order.NEWEST or wanted.limit is None or wanted.step is not None:
        return True
    try:
        return len(chosen(stored, wanted)) < wanted.limit
    except NothingChosen:
        return True


def _narrowed(rows: list[StoredRow], wanted: Wanted) -> list[StoredRow]:
    """An archive may be larger than memory; what is wanted of it mostly is not."""
    try:
        return chosen(rows, wanted)
    except NothingChosen:
        return []
