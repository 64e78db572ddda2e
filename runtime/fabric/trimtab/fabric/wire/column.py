"""What a stage has computed about the rows of a group: numbers for each, which the rank that trains a row joins to it
by its id. All rows of a group are one message, so that a column is there for a group or it is not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta

from trimtab.fabric.wire import arrays
from trimtab.fabric.wire.errors import InvalidFieldError
from trimtab.fabric.wire.header import MESSAGE_ID, read_header
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.stage import MAX_ROWS
from trimtab.fabric.wire.values import Count, Finite, Name, RunId, Slug, Text, Token, UnixSeconds, Version

COLUMN = "Trimtab-Column"
_FLOAT32 = np.dtype("<f4")
_MAX_VALUES = 1 << 26

# Not numpy's NDArray, which from Python 3.12 on is an alias that msgspec takes apart: hooks would not know it again.
Values = np.ndarray[tuple[Any, ...], np.dtype[np.float32]]
RowsDigest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]


def rows_digest(trajectory_ids: Iterable[str]) -> str:
    """Of which rows, in which order, something was computed: a column of others is not taken for theirs."""
    return hashlib.blake2b("\n".join(trajectory_ids).encode(), digest_size=16).hexdigest()


class Column(Message, frozen=True, kw_only=True, eq=False):
    """One stage's numbers about one group, those of all rows one after the other."""

    KIND: ClassVar[int] = 17
    MAX_BYTES: ClassVar[int] = 256 << 20
    COMPRESS_TO: ClassVar[int] = 4 * arrays.PLANES_FROM + 4096  # in longer ones the array is compressed already

    job: Name
    stage: Name
    policy: Name
    """Whose rows these are."""
    group_id: Token
    run: RunId
    """Which execution of the stage's task this comes of."""
    trajectory_ids: Annotated[tuple[Token, ...], Meta(min_length=1, max_length=MAX_ROWS)]
    lengths: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=MAX_ROWS)]
    """Of each row: one number for each trained token, for each trained turn, or one."""
    values: Values

    @classmethod
    def enc_hook(cls, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return arrays.pack(value)
        return super().enc_hook(value)

    @classmethod
    def dec_hook(cls, kind: Any, value: Any) -> Any:
        if not isinstance(value, bytes):
            raise InvalidFieldError(f"expected a packed array, got {type(value).__name__}")
        return arrays.unpack(value, _FLOAT32, max_items=_MAX_VALUES, field="values")

    def own_value(self, kind: Any, value: Any) -> Any:
        return self.values

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.lengths) != len(self.trajectory_ids):
            raise InvalidFieldError(f"{len(self.lengths)} for {len(self.trajectory_ids)} rows", field="lengths")
        if len(set(self.trajectory_ids)) != len(self.trajectory_ids):
            raise InvalidFieldError("a trajectory is listed twice", field="trajectory_ids")
        if self.values.dtype != np.float32 or self.values.ndim != 1 or len(self.values) != sum(self.lengths):
            raise InvalidFieldError(
                f"expected {sum(self.lengths)} float32, got {self.values.shape} {self.values.dtype}", field="values"
            )
        if not np.isfinite(self.values).all():
            raise InvalidFieldError("a value is not finite", field="values")

    @property
    def by_row(self) -> dict[str, np.ndarray[tuple[Any, ...], np.dtype[np.float32]]]:
        """The numbers of each row, by its id."""
        ends = np.cumsum(self.lengths)[:-1]
        return dict(zip(self.trajectory_ids, np.split(self.values, ends), strict=True))

    @property
    def message_id(self) -> str:
        """Decides duplicates in the stream."""
        return f"{self.group_id}.{self.stage}.{self.run}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Column):
            return NotImplemented
        return all(
            np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else bool(mine == theirs)
            for mine, theirs in ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        )

    def __hash__(self) -> int:
        return hash(self.message_id)


class ColumnHeader(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All that the dataflow needs of a column. `error` is that of a stage that was given up: there are no numbers then,
    and the group has failed."""

    header_version: Literal[1]
    job: Name
    policy: Name
    stage: Name
    group_id: Token
    run: RunId
    rows_digest: RowsDigest
    rewards: Annotated[tuple[Finite, ...], Meta(max_length=MAX_ROWS)] | None
    """Of each row, from a stage that computes it."""
    turn_rewards: Annotated[tuple[tuple[Finite, ...], ...], Meta(max_length=MAX_ROWS)] | None
    keep: Annotated[tuple[bool, ...], Meta(max_length=MAX_ROWS)] | None
    """From a filter."""
    error: Slug | None
    message: Text
    oldest_version: Version | None
    """Of the weights that computed it, where they are of a policy that learns."""
    newest_version: Version | None
    worker: Name
    pool: Name
    started_at: UnixSeconds
    finished_at: UnixSeconds

    def __post_init__(self) -> None:
        oldest, newest = self.oldest_version, self.newest_version
        if (oldest is None) != (newest is None):
            raise InvalidFieldError("one of oldest and newest version is missing", field="newest_version")
        if oldest is not None and newest is not None and oldest > newest:
            raise InvalidFieldError("older than the oldest version", field="newest_version")
        results: tuple[object, ...] = (self.rewards, self.turn_rewards, self.keep)
        if self.error is not None and any(result is not None for result in results):
            raise InvalidFieldError("an error and a result", field="error")


_decode = msgspec.json.Decoder(ColumnHeader).decode


def column_headers(header: ColumnHeader) -> dict[str, str]:
    """The headers to publish a column with, refused here when a reader would refuse them."""
    sent = {
        MESSAGE_ID: f"{header.group_id}.{header.stage}.{header.run}",
        COLUMN: json.dumps(msgspec.to_builtins(header), separators=(",", ":")),
    }
    parse_column_headers(sent)
    return sent


def parse_column_headers(received: Mapping[str, str]) -> ColumnHeader:
    """Raises a WireError for anything that `column_headers` would not have written."""
    message_id, header = read_header(received, COLUMN, _decode)
    if message_id != f"{header.group_id}.{header.stage}.{header.run}":
        raise InvalidFieldError("not that of the group, the stage and the run", field=MESSAGE_ID)
    return header
