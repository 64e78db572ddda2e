"""Notes in the metadata of a job's streams: what the operator has to say in a job, where it may publish nothing. Nobody
else may alter a stream, and every pod that may look one up can read them.
"""

from __future__ import annotations

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call


async def read_note(bus: Bus, stream: str, key: str, *, deadline_s: float) -> str | None:
    """None where there is none. Raises BusNotFound where there is no such stream."""
    present = (await api_call(bus, f"STREAM.INFO.{stream}", deadline_s=deadline_s))["config"]
    note: str | None = (present.get("metadata") or {}).get(key)
    return note


async def write_note(bus: Bus, stream: str, key: str, text: str | None, *, deadline_s: float) -> None:
    """None takes it away. The server keeps 128 KiB of metadata of a stream. Whoever else alters the stream meanwhile is
    overwritten: only the operator may, and it writes one note of a stream after another."""
    present = (await api_call(bus, f"STREAM.INFO.{stream}", deadline_s=deadline_s))["config"]
    metadata: dict[str, str] = dict(present.get("metadata") or {})
    if metadata.get(key) == text:
        return
    metadata.pop(key, None)
    if text is not None:
        metadata[key] = text
    update = present | {"metadata": metadata}
    await api_call(bus, f"STREAM.UPDATE.{stream}", update, deadline_s=deadline_s)
