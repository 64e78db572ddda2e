"""A version that is not there yet: this one with what a later version may add, as a tree that Python finds first.

It adds a field to messages of every role and to the headers of rows, and a record to the ledger that others may pass
over. That it runs is seen by what it adds.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import trimtab.dataflow
import trimtab.fabric
import trimtab.operator
import trimtab.rollout
import trimtab.trainer
import trimtab.weights

FIELD, ADDED = "release", "next"
RECORD = 250

_NEW_FIELD = f'    {FIELD}: str = msgspec.field(default_factory=lambda: "{ADDED}")\n'
_AFTER = {
    "fabric/wire/member.py": ("    sent_at: UnixSeconds\n", _NEW_FIELD),
    "fabric/wire/trajectory.py": ("    pool: Name\n    engine: Name\n    started_at: UnixSeconds\n", _NEW_FIELD),
    "fabric/wire/header.py": (
        "    reward_parts: RewardParts = msgspec.field(default_factory=dict)\n",
        f'    {FIELD}: str = "{ADDED}"\n',
    ),
    "fabric/wire/lease.py": ("    wait_hint: Seconds = 0.0\n", _NEW_FIELD),
    "dataflow/ledger/newer_records.py": (
        '_YES = "yes"\n',
        f"""

class NextNote(Message, frozen=True, kw_only=True):
    KIND = {RECORD}

    text: str


""",
    ),
    "dataflow/service.py": (
        "    books = Bookkeeper(ledger, journal)\n",
        "    from trimtab.dataflow.ledger.newer_records import NextNote\n\n"
        '    await journal.write(NextNote(text="began"))  # type: ignore[arg-type]\n',
    ),
}
_INSTEAD = {
    "dataflow/ledger/newer_records.py": (
        "_PASSABLE: tuple[type[Message], ...] = (SettingsTaken,)",
        "_PASSABLE: tuple[type[Message], ...] = (SettingsTaken, NextNote)",
    ),
}


def make_next(folder: Path) -> Path:
    """What is to be put on PYTHONPATH."""
    tree = folder / "trimtab"
    for part in (trimtab.fabric, trimtab.weights, trimtab.dataflow, trimtab.rollout, trimtab.trainer):
        source = Path(str(part.__file__)).parent
        shutil.copytree(source, tree / source.name)
    for name, (anchor, added) in _AFTER.items():
        _edit(tree / name, anchor, anchor + added)
    for name, (old, new) in _INSTEAD.items():
        _edit(tree / name, old, new)
    return folder


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file.name} has {old!r} {text.count(old)} times: name another place"
    file.write_text(text.replace(old, new))


def make_next_operator(folder: Path) -> Path:
    """The same of the operator: it gives dataflows two seconds more to end."""
    source = Path(str(trimtab.operator.__file__)).parent
    shutil.copytree(source, folder / "trimtab" / "operator")
    _edit(folder / "trimtab/operator/plan/job_pods.py", "_DATAFLOW_GRACE_S = 10.0", "_DATAFLOW_GRACE_S = 12.0")
    return folder
