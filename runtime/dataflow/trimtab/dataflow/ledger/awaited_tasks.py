"""Which tasks the books still wait for."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.task_ids import task_id


def unended(ledger: Ledger) -> list[int]:
    """Tasks of which something is still to come."""
    streams = [stream for stream in ledger.streams.values() if stream.groups_per_task]
    first = min((stream.settled_tasks for stream in streams), default=ledger.issued)
    return [
        number
        for number in range(first, ledger.issued)
        if not all(stream.ended.has_all(number, roles=stream.groups_per_task) for stream in streams)
    ]


def unseen(ledger: Ledger, numbers: Iterable[int]) -> list[int]:
    """Those tasks of which nothing has come yet."""
    streams = ledger.streams.values()
    begun = {task for stream in streams for task in stream.begun_tasks()}
    return [
        number
        for number in numbers
        if task_id(number) not in begun and not any(stream.ended.has_task(number) for stream in streams)
    ]
