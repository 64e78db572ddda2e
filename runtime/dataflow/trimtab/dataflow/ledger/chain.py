"""Each record names the one before it, so that a hole in the ledger shows. Where a block of the server's files is
damaged it drops the rest of that block and says nothing: what follows would be read as if nothing had been between.

Numbers alone do not show it. Others write to the stream too, and a ledger that has lost its end goes on behind the
numbers that are gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.fabric.bus.delivery import Delivery

_HEADER = "Trimtab-Ledger-Previous"
"""Of each record. Earlier versions wrote none."""


@dataclass(frozen=True)
class Hole:
    """In the place of records that are gone."""

    after: int
    """The number of the last record before it, 0 where the beginning is gone."""
    before: int

    def __str__(self) -> str:
        return f"records between {self.after} and {self.before} of the ledger are gone"


@dataclass
class Chain:
    """Of the records that were read and written, in order."""

    newest: int = 0
    """The number of the last one."""

    def headers(self) -> dict[str, str]:
        """Of the next one."""
        return {_HEADER: str(self.newest)}

    def follow(self, delivery: Delivery) -> Hole | None:
        """Take the next one that is the dataflow's own; the hole that is in front of it, if there is one."""
        after, self.newest = self.newest, delivery.sequence
        named = delivery.headers.get(_HEADER)
        return None if named in (None, str(after)) else Hole(after=after, before=delivery.sequence)
