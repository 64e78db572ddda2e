"""What keeps a ledger from going on."""

from __future__ import annotations


class LedgerError(RuntimeError):
    """The streams contradict each other: going on would train something twice or lose it."""


class RowsGone(LedgerError):
    """The ledger speaks of rows that the stream of trajectories has lost, as it may by a loss of power."""
