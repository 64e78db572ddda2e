"""A job whose storage is nearly full is told to admit no new tasks, by a note on its stream of tasks, which its
dataflow looks up anyway.

The note runs out, so that an operator that goes away holds nobody back for long.
"""

from __future__ import annotations

import json

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.stream_notes import read_note, write_note
from trimtab.fabric.bus.topology import JobTopology

HOLD_S = 120.0
"""How long a note holds unless it is renewed."""
_KEY = "trimtab.admission-hold"
_MAX_REASON = 512


async def hold_admission(bus: Bus, topology: JobTopology, reason: str | None, *, now: float, deadline_s: float) -> None:
    """`now` is Unix time. None lets tasks be admitted again."""
    note = None if reason is None else json.dumps({"until": now + HOLD_S, "reason": reason[:_MAX_REASON]})
    await write_note(bus, topology.tasks.name, _KEY, note, deadline_s=deadline_s)


async def held_for(bus: Bus, topology: JobTopology, *, now: float, deadline_s: float) -> str | None:
    """Why no task is to be admitted at Unix time `now`; None when tasks may be."""
    text = await read_note(bus, topology.tasks.name, _KEY, deadline_s=deadline_s)
    if text is None:
        return None
    try:
        note = json.loads(text)
        until, reason = float(note["until"]), str(note["reason"])
    except (KeyError, ValueError, TypeError):
        return None
    # Clocks of machines differ a little; a note from far ahead is none of ours.
    return reason if now < until <= now + 2 * HOLD_S else None
