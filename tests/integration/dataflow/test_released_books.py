"""Ledgers, rows and columns that released versions have left: this version goes on with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dataflow.simulation import running
from tests.support.polling import patiently
from tests.support.released.books import KINDS, at_work, read, rows_of
from tests.support.released.folders import released
from trimtab.embedded.nats_server import EmbeddedNats

_MORE = 12
BOOKS = [pytest.param(folder / "books" / kind, id=f"{folder.name}-{kind}") for folder in released() for kind in KINDS]


@pytest.mark.parametrize("source", BOOKS)
async def test_a_job_goes_on_with_the_books_of_a_released_version(
    source: Path, own_nats: EmbeddedNats, tmp_path: Path
) -> None:
    async with read(source, own_nats.settings, tmp_path) as (sim, facts):
        steps: int = facts["steps"]
        seen: dict[int, set[str]] = {}
        async with at_work(sim), sim.service() as service, running(service), patiently(60.0):
            # What a trainer was given and had not made durable, it is given again.
            for step, rows in facts["held"].items():
                assert await rows_of(sim, int(step), attempt=2) == rows
            assert await sim.train(steps=range(steps, steps + _MORE), attempt=2, seen=seen) == steps + _MORE
    if not sim.job.spec.data.replay:
        before = {row for rows in facts["held"].values() for row in rows}
        assert before.isdisjoint(row for rows in seen.values() for row in rows), "a row was granted twice"
