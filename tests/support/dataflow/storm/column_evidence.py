"""Judges what stage workers and ranks noted of columns: each row had the first column that answered its question, of
every stage that is for its policy, and no column that was acknowledged is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.support.dataflow.stage_worker import gives_up
from tests.support.dataflow.storm.site import Computed, Leased, Note
from trimtab.api.stage import Stage
from trimtab.dataflow.audit.columns import staged_histories
from trimtab.dataflow.audit.streams import Streams

_JOINED = ("Logprobs", "Values", "Custom")


def column_faults(notes: Sequence[Note], streams: Streams, stages: Sequence[Stage]) -> list[str]:
    """What is wrong, one sentence each. Ranks have looked at the numbers themselves, and fail when one is wrong."""
    return [
        *_lost([note for note in notes if isinstance(note, Computed)], streams),
        *_wrongly_joined([note for note in notes if isinstance(note, Leased)], streams, stages),
    ]


def _lost(computed: Iterable[Computed], streams: Streams) -> Iterable[str]:
    there = {sequence: (header.stage, header.group_id, header.run) for sequence, header in streams.columns}
    for note in computed:
        if there.get(note.sequence) != (note.stage, note.group_id, note.run):
            yield f"what {note.stage} says of {note.group_id} was acknowledged and is not there"


def _wrongly_joined(leased: Iterable[Leased], streams: Streams, stages: Sequence[Stage]) -> Iterable[str]:
    histories = staged_histories(streams, stages)
    policies = {header.policy for header in streams.headers}
    for note in leased:
        own = [stage for stage in stages if note.policy in (stage.rows or policies)]
        for row in note.rows:
            taken = histories[row.group_id].taken if row.group_id in histories else {}
            wanted = {stage.name: taken[stage.name][0] for stage in own if stage.name in taken and _is_joined(stage)}
            where = f"{note.policy}: row {row.trajectory_id} of step {note.step}"
            if any(stage.name not in taken for stage in own):
                yield f"{where} was trained with the columns of {sorted(taken)} alone"
            if dict(row.columns) != wanted or len(row.columns) != len(wanted):
                yield f"{where} was joined with {dict(row.columns)}, where {wanted} came first"
            for stage in own:
                if gives_up(stage.name, row.group_id):
                    yield f"{where} was given up by stage {stage.name}"


def _is_joined(stage: Stage) -> bool:
    return stage.computes in _JOINED
