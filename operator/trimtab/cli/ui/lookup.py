"""What a page asks a run's streams for: its samples, and the tasks that were given up. Those of a run that has ended
are read from a broker that is started for the question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from trimtab.cli.job_bucket import bus_settings, entries_on, on_bus, readable_values
from trimtab.cli.samples.archive import SampleArchive, is_needed
from trimtab.cli.samples.choice import NothingChosen, StoredRow, Wanted, chosen
from trimtab.cli.samples.pieces import Piece, pieces
from trimtab.cli.samples.reading import JobStore, stored_rows, trajectories
from trimtab.cli.samples.tokenizers import Tokenizers
from trimtab.cli.ui.following import given_up, newest_of
from trimtab.cli.ui.run import Place
from trimtab.cli.ui.shown import GivenUpTask
from trimtab.cli.weights.local_store import first_tokenizers, has_archive
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import Entry
from trimtab.fabric.wire.quarantine import QuarantinedTask
from trimtab.fabric.wire.trajectory import Failed, Trajectory

Result = TypeVar("Result")
_COMPLAINTS = 20
_TEXT = 2_000_000
"""Characters of a row that are shown."""


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row by its header."""

    sequence: int
    id: str
    policy: str
    role: str
    prompt: str
    group_index: int
    group_size: int
    part: int
    parts: int
    label: str = ""
    benchmark: str | None = None
    step: int | None = None
    reward: float | None = None
    reward_parts: dict[str, float] = msgspec.field(default_factory=dict)
    finish: str | None = None
    error: str | None = None
    oldest_version: int | None = None
    newest_version: int | None = None
    prompt_tokens: int = 0
    response_tokens: int = 0
    trained_tokens: int = 0
    worker: str
    started_at: float
    finished_at: float


class Text(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one producer wrote. `marks` are of the model's own: a token's text, and its log-probability."""

    producer: str
    tokens: int
    text: str = ""
    turn: int | None = None
    version: int | None = None
    reward: float | None = None
    marks: tuple[tuple[str, float], ...] = ()


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    samples: list[Sample]
    of: int
    """So many there are."""
    unreadable: list[str]


class Spoken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    sample: Sample
    texts: list[Text]
    failure: str = ""
    is_whole: bool = True


class Lookup:
    """Of one run. Its methods take seconds, and are called in a thread, one at a time."""

    def __init__(self, place: Place, *, tokenizer: Path | None) -> None:
        self._place = place
        known = {} if place.state_folder is None else first_tokenizers(place.state_folder)
        self._tokenizers = Tokenizers(named=tokenizer, known=known)
        self._may_be_archived = place.state_folder is None or has_archive(place.state_folder)
        self._rows: dict[int, StoredRow] = {}
        """As they were read the last time, by their places in the stream."""

    def samples(self, wanted: Wanted, *, limit: int) -> Samples:
        """Raises NothingChosen."""
        unreadable: list[str] = []

        bounded = replace(wanted, limit=limit)

        async def read(bus: Bus) -> tuple[list[StoredRow], Collection[int]]:
            rows = await stored_rows(bus, self._place.topology, complain=unreadable.append)
            steps: Collection[int] = ()
            async with JobStore(self._place.state_folder) as store:
                if self._may_be_archived and store.is_known and is_needed(bounded, rows):
                    archived, steps = await SampleArchive(await store.open(), unreadable.append).rows(bounded, rows)
                    rows += archived
            return rows, steps

        rows, archived_steps = self._on_bus(read)
        self._rows = {row.sequence: row for row in rows}
        found = chosen(rows, wanted, archived=archived_steps)
        return Samples(
            samples=[_sample(row) for row in found[:limit]], of=len(found), unreadable=unreadable[:_COMPLAINTS]
        )

    def spoken(self, sequence: int) -> Spoken:
        """Raises NothingChosen for a row that is not in the list that was read, or is gone."""
        if (row := self._rows.get(sequence)) is None:
            raise NothingChosen("the list of samples is of before; read it again")
        complaints: list[str] = []

        async def read(bus: Bus) -> list[Spoken]:
            async with JobStore(self._place.state_folder) as store:
                archive = None if row.archived_in is None else SampleArchive(await store.open(), complaints.append)
                stored = trajectories(bus, self._place.topology, [row], store, archive, complain=complaints.append)
                return [self._spoken(row, trajectory) async for _, trajectory in stored]

        found = self._on_bus(read)
        if not found:
            raise NothingChosen("; ".join(complaints))
        return found[0]

    def given_up(self) -> list[GivenUpTask]:
        topology = self._place.topology

        async def read(bus: Bus) -> list[Entry]:
            return await entries_on(bus, topology, topology.quarantine, keys=">")

        return newest_of([given_up(task) for task in readable_values(self._on_bus(read), QuarantinedTask)])

    def _spoken(self, row: StoredRow, trajectory: Trajectory) -> Spoken:
        texts, room = [], _TEXT
        for piece in pieces(trajectory, self._tokenizers.decode(trajectory.policy)):
            if room <= 0:
                break
            texts.append(_text(piece, room=room))
            room -= len(piece.text)
        failed = trajectory.outcome if isinstance(trajectory.outcome, Failed) else None
        return Spoken(
            sample=_sample(row),
            texts=texts,
            failure=f"{failed.error}: {failed.message}" if failed else "",
            is_whole=room >= 0,
        )

    def _on_bus(self, work: Callable[[Bus], Coroutine[Any, Any, Result]]) -> Result:
        with bus_settings(self._place.state_folder) as settings:
            return asyncio.run(on_bus(settings, self._place.topology, work))


def _sample(row: StoredRow) -> Sample:
    header = row.header
    return Sample(
        sequence=row.sequence,
        id=row.trajectory_id,
        policy=header.policy,
        role=header.role,
        prompt=header.prompt_id,
        group_index=header.group_index,
        group_size=header.group_size,
        part=header.part,
        parts=header.parts,
        label=header.label,
        benchmark=header.benchmark,
        step=row.step,
        reward=header.reward,
        reward_parts=dict(header.reward_parts),
        finish=None if header.finish is None else str(header.finish),
        error=header.error,
        oldest_version=header.oldest_version,
        newest_version=header.newest_version,
        prompt_tokens=header.prompt_tokens,
        response_tokens=header.response_tokens,
        trained_tokens=header.trained_tokens,
        worker=header.worker,
        started_at=header.started_at,
        finished_at=header.finished_at,
    )


def _text(piece: Piece, *, room: int) -> Text:
    return Text(
        producer=piece.producer.name.lower(),
        tokens=len(piece.token_ids),
        text="" if piece.marks else piece.text[:room],
        turn=piece.turn,
        version=piece.version,
        reward=piece.reward,
        marks=tuple((mark.text, round(mark.logprob, 3)) for mark in piece.marks[:room]),
    )
