"""A task in quarantine is kept with its prompt as long as there is room for it, and with its error in any case."""

from __future__ import annotations

from tests.support.fabric.wire_specimens import quarantined, task
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.quarantine import QuarantinedTask, stored_entry


def test_an_entry_keeps_the_task_for_another_try() -> None:
    entry = quarantined()
    assert decode(stored_entry(entry), QuarantinedTask) == entry


def test_a_prompt_that_is_too_large_is_left_out_and_the_error_stays() -> None:
    entry = quarantined(task=task(prompt={"page": "all work and no play " * 20_000}))
    stored = stored_entry(entry)
    assert len(stored) < 1000
    assert decode(stored, QuarantinedTask) == quarantined(task=None)
