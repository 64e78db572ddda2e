"""What stages have computed about leased rows, joined to them by their ids, and checked: a column is the word of a pod
that may be broken or hostile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trimtab.fabric.wire.column import Column
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.lease import Group, SampleReference
from trimtab.fabric.wire.stage import ColumnReference
from trimtab.fabric.wire.trajectory import TurnReward

Numbers = npt.NDArray[np.float32]


class ColumnUnusable(ValueError):
    """A column is not what was leased, or says nothing of a row: the row cannot be trained as it was meant to be."""


@dataclass(frozen=True, kw_only=True)
class LeasedColumns:
    """Of one lease. Each is read once, however many rows of its group the rank holds."""

    payloads: Mapping[int, bytes | Exception]
    """By sequence, or why there is none."""
    computed_with: Mapping[int, int] = field(default_factory=dict)
    """By sequence, the oldest version of the weights that computed it, where they are of a policy that learns."""
    by_rows: frozenset[str] = frozenset()
    """Stages whose columns may have one number for a row, or for a turn, in place of one for each trained token."""
    _read: dict[int, tuple[Column, Mapping[str, Numbers]] | ColumnUnusable] = field(
        default_factory=dict, init=False, repr=False
    )

    def of(
        self, sample: SampleReference, group: Group, *, mask: npt.NDArray[np.bool_], turns: Sequence[TurnReward]
    ) -> dict[str, Numbers]:
        """By stage, the numbers of a row, aligned with its tokens and zero where the mask is not set. Raises
        ColumnUnusable.
        """
        found: dict[str, Numbers] = {}
        for reference in group.columns:
            column, rows = self._column(reference)
            if (column.stage, column.group_id) != (reference.stage, group.group_id):
                raise ColumnUnusable(
                    f"column {reference.sequence} is what {column.stage} says of {column.group_id}; leased was what"
                    f" {reference.stage} says of {group.group_id}"
                )
            if sample.trajectory_id not in rows:
                raise ColumnUnusable(f"column {reference.sequence} of {reference.stage} says nothing of the row")
            aligned = np.zeros(len(mask), dtype=np.float32)
            aligned[mask] = self._per_token(reference, rows[sample.trajectory_id], int(mask.sum()), turns)
            found[reference.stage] = aligned
        return found

    def versions(self, group: Group) -> dict[str, int]:
        """By stage, of the weights that computed its column."""
        return {
            column.stage: self.computed_with[column.sequence]
            for column in group.columns
            if column.sequence in self.computed_with
        }

    def _column(self, reference: ColumnReference) -> tuple[Column, Mapping[str, Numbers]]:
        if reference.sequence not in self._read:
            self._read[reference.sequence] = self._decoded(reference)
        read = self._read[reference.sequence]
        if isinstance(read, ColumnUnusable):
            raise read
        return read

    def _decoded(self, reference: ColumnReference) -> tuple[Column, Mapping[str, Numbers]] | ColumnUnusable:
        where = f"column {reference.sequence} of {reference.stage}"
        payload = self.payloads.get(reference.sequence)
        if payload is None:
            return ColumnUnusable(f"{where} is not there")
        if isinstance(payload, Exception):
            return ColumnUnusable(f"{where}: {payload}")
        try:
            column = decode(payload, Column)
        except WireError as error:
            return ColumnUnusable(f"{where}: {error}")
        return column, column.by_row

    def _per_token(
        self, reference: ColumnReference, numbers: Numbers, trained: int, turns: Sequence[TurnReward]
    ) -> Numbers:
        if len(numbers) == trained:
            return numbers
        if reference.stage in self.by_rows:
            if len(numbers) == 1:
                return np.repeat(numbers, trained)
            if turns and len(numbers) == len(turns):
                return np.repeat(numbers, [turn.tokens for turn in turns])
        raise ColumnUnusable(
            f"column {reference.sequence} of {reference.stage} has {len(numbers)} numbers for {trained} trained tokens"
        )
