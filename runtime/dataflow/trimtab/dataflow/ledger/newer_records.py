"""Records of versions newer than this one: a version that is rolled back to meets them in the ledger.

What it does not know it must not pass over, as samples may depend on it. Only of some kinds does the writer say that
whoever does not know them may go on without.
"""

from __future__ import annotations

import structlog

from trimtab.dataflow.ledger.errors import LedgerError
from trimtab.dataflow.ledger.records import RECORDS, SettingsTaken, SnapshotPart
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.wire.envelope import decode, kind_of
from trimtab.fabric.wire.errors import KindError, VersionError
from trimtab.fabric.wire.message import Message

_log = structlog.get_logger(__name__)
_PASSABLE_HEADER = "Trimtab-Ledger-Passable"
_YES = "yes"
_PASSABLE: tuple[type[Message], ...] = (SettingsTaken,)
"""Kinds that tell people and auditors something, and by which nothing is decided about samples."""


class UnknownRecord(LedgerError):
    """A newer version of Trimtab wrote it, and without it this one would misread the rest."""

    def __init__(self, why: str, *, sequence: int) -> None:
        super().__init__(
            f"record {sequence} of the job's ledger is unknown to this version of Trimtab ({why}), and nothing was"
            " changed: run the job with the version that wrote it, or a later one"
        )


def passable_headers(record: Message) -> dict[str, str]:
    """What a record is written with, for readers that do not know its kind."""
    return {_PASSABLE_HEADER: _YES} if isinstance(record, _PASSABLE) else {}


def read_record(delivery: Delivery) -> Message | None:
    """None for one that this version may go on without. Raises UnknownRecord; a WireError for a damaged one."""
    try:
        return decode(delivery.payload, *RECORDS, SnapshotPart)
    except (KindError, VersionError) as error:
        if delivery.headers.get(_PASSABLE_HEADER) != _YES:
            raise UnknownRecord(error.detail, sequence=delivery.sequence) from None
        _log.warning("newer_record_passed_over", sequence=delivery.sequence, kind=kind_of(delivery.payload))
        return None
