"""One page's stream of events: the list of runs, and of those that it looks at what is new since it last heard.

A page that lost the stream says how far it had come and hears the rest, also from a server that was started anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from trimtab.cli.ui.book import Book
from trimtab.cli.ui.run import Run
from trimtab.cli.ui.shown import Now

_LOOK_S = 0.2
_BEAT_S = 2.0
_WRITE_S = 30.0
_AT_ONCE = 2000
_RUNS = 16
_encoder = msgspec.json.Encoder()


class BadRequest(ValueError):
    """The message says what is wrong with it."""


@dataclass
class Reader:
    """How far a page has come with a run."""

    generation: str
    count: int
    now: Now | None = None
    figured: int = field(default=-1)
    """At how many things told its figures were sent."""


def readers(asked: Sequence[str]) -> dict[str, Reader]:
    """From `ID:GENERATION:COUNT` each. Raises BadRequest."""
    if len(asked) > _RUNS:
        raise BadRequest(f"{len(asked)} runs at once: at most {_RUNS} are shown over each other")
    found = {}
    for one in asked:
        run_id, generation, count = (*one.split(":"), "", "")[:3]
        if not count.isdecimal() or len(count) > 9:
            raise BadRequest(f"run={one[:80]!r} is not ID:GENERATION:COUNT")
        found[run_id] = Reader(generation, int(count))
    return found


async def stream(response: web.StreamResponse, book: Book, looked_at: dict[str, Reader], ending: asyncio.Event) -> None:
    """Until the page goes away or the server ends. Raises ConnectionError, or TimeoutError for a page that takes
    nothing."""
    pen = _Pen(response)
    changes, beat_at = -1, 0.0
    with book.watched(frozenset(looked_at)):
        while not ending.is_set():
            if book.changes != changes:
                changes = book.changes
                await pen.write("runs", {"runs": [run.summary for run in book.runs.values()], "trouble": book.trouble})
            for run_id, reader in looked_at.items():
                if (run := book.runs.get(run_id)) is not None:
                    await _tell(pen, run, reader)
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + _BEAT_S
                await pen.write("beat", {"at": time.time()})
            try:
                async with asyncio.timeout(_LOOK_S):
                    await ending.wait()
            except TimeoutError:
                continue


async def _tell(pen: _Pen, run: Run, reader: Reader) -> None:
    telling = run.telling
    if reader.generation != run.generation or reader.count > len(telling.told):
        reader.generation, reader.count, reader.figured = run.generation, 0, -1
    while reader.count < len(telling.told) or reader.figured != len(telling.told):
        new = telling.told[reader.count : reader.count + _AT_ONCE]
        start, reader.count = reader.count, reader.count + len(new)
        said = {"id": run.id, "generation": reader.generation, "from": start, "told": new}
        if reader.count == len(telling.told):
            reader.figured = reader.count
            said["figures"] = telling.figures()
        await pen.write("told", said)
        if run.telling is not telling:
            return
    if run.now is not reader.now:
        reader.now = run.now
        await pen.write("now", {"id": run.id, "now": run.now})


class _Pen:
    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    async def write(self, event: str, data: object) -> None:
        """JSON has no line ends, which would end the event."""
        async with asyncio.timeout(_WRITE_S):
            await self._response.write(f"event: {event}\ndata: ".encode() + _encoder.encode(data) + b"\n\n")
