"""What a job has on the bus, by the names of the table in docs/security.md, and what that table says of each role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab.fabric.bus.topology import BucketSpec, JobTopology, StreamSpec

SECURITY = Path(__file__).parents[4] / "docs/security.md"
BATCHES = "batches"
STAGE = "scan"
"""Of both jobs."""
_FIRST_CELL = "| stream or bucket |"


@dataclass(frozen=True)
class Target:
    """A stream or bucket, with a subject that it takes."""

    name: str
    stream: str
    subject: str


def targets_of(topology: JobTopology) -> list[Target]:
    streams: list[tuple[str, StreamSpec, str]] = [
        ("TASKS", topology.tasks, topology.task_subject("scan")),
        ("TRAJECTORIES", topology.trajectories, topology.trajectory_subject("scan")),
        ("STAGES", topology.stage_tasks, topology.stage_subject(STAGE)),
        ("COLUMNS", topology.columns, topology.column_subject(STAGE)),
        ("LEDGER", topology.ledger, topology.ledger_subject),
    ]
    buckets: list[tuple[str, BucketSpec]] = [
        ("weights", topology.weights),
        ("members", topology.members),
        ("balance", topology.balance),
        ("quarantine", topology.quarantine),
        ("hand-backs", topology.hand_backs),
        ("swaps", topology.swaps),
    ]
    return [
        *(Target(name, spec.name, subject) for name, spec, subject in streams),
        *(Target(name, spec.stream, f"$KV.{spec.name}.scan") for name, spec in buckets),
    ]


def documented(text: str) -> Mapping[str, frozenset[str]]:
    """What each role may do, as `target: what`, from the table of the page."""
    lines = text.splitlines()
    (begin,) = [number for number, line in enumerate(lines) if line.startswith(_FIRST_CELL)]
    roles = _cells(lines[begin])[1:]
    found: dict[str, set[str]] = {role: set() for role in roles}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        target, *cells = _cells(line)
        for role, cell in zip(roles, cells, strict=True):
            found[role] |= {f"{target}: {what.strip()}" for what in cell.split(",") if what.strip()}
    return {role: frozenset(what) for role, what in found.items()}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
