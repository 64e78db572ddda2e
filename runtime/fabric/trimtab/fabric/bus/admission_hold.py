"""A job whose storage is nearly full is told to admit no new tasks, by a note in the metadata of its stream of tasks:
the one thing that the operator may write in a job, and that its dataflow reads anyway.

The note runs out, so that an operator that goes away holds nobody back for long.
"""

from __future__ import annotations

import json

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.topology import JobTopology

HOLD_S = 120.0
"""How long a note holds unless it is renewed."""
_KEY = "trimtab.admission-hold"
_MAX_REASON = 512


async def hold_admission(bus: Bus, topology: JobTopology, reason: str | None, *, now: float, deadline_s: float) -> None:
    """`now` is Unix time. None lets tasks be admitted again."""
    present = (await api_call(bus, f"STREAM.INFO.{topology.tasks.name}", deadline_s=deadline_s))["config"]
    metadata: dict[str, str] = dict(present.get("metadata") or {})
    if reason is None and _KEY not in metadata:
        return
    metadata.pop(_KEY, None)
    if reason is not None:
        metadata[_KEY] = json.dumps({"until": now + HOLD_S, "reason": reason[:_MAX_REASON]})
    update = present | {"metadata": metadata}
    await api_call(bus, f"STREAM.UPDATE.{topology.tasks.name}", update, deadline_s=deadline_s)


async def held_for(bus: Bus, topology: JobTopology, *, now: float, deadline_s: float) -> str | None:
    """Why no task is to be admitted at Unix time `now`; None when tasks may be."""
    present = (await api_call(bus, f"STREAM.INFO.{topology.tasks.name}", deadline_s=deadline_s))["config"]
    try:
        note = json.loads((present.get("metadata") or {})[_KEY])
        until, reason = float(note["until"]), str(note["reason"])
    except (KeyError, ValueError, TypeError):
        return None
    # Clocks of machines differ a little; a note from far ahead is none of ours.
    return reason if now < until <= now + 2 * HOLD_S else None
