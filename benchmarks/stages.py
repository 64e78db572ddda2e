"""What stages cost and what they gain: rows with a column that a stage adds to them, from publish to the rank, beside
TransferQueue with the same rows and columns in the same run; and the trainer's step with a reference in its memory and
as a stage, and with groups as they come.

`python -m benchmarks.stages` starts nats-server, the dataflow pod, processes of workers, of a stage and of a rank, and
Ray.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Bar, logs_to_stderr, note, paired_share, report
from benchmarks.training.stage_steps import measure_on_cpu
from benchmarks.trajectories import ranks
from benchmarks.trajectories.broker import MonitoredNats
from benchmarks.trajectories.columns import ColumnResult, measure_columns
from benchmarks.trajectories.rounds import PEER_GROUPS, Scene, Size
from benchmarks.trajectories.spawned import spawned
from benchmarks.trajectories.stage_side import StageSide
from benchmarks.trajectories.transferqueue import VERSION, transferqueue
from benchmarks.trajectories.workers import Workers

SIZES = (
    Size(name="2KiB", payload_bytes=2 << 10, batch_size=1024, steps=8),
    Size(name="32KiB", payload_bytes=32 << 10, batch_size=256, steps=8),
)
_TIMES_TRANSFERQUEUE = 1.0
_TRAINER_THREADS = 1


def column_bars(results: Sequence[ColumnResult]) -> dict[str, Bar]:
    return {
        f"columns_times_transferqueue_{result.size.name}": Bar(
            paired_share(result.rates["trimtab"], result.rates[PEER_GROUPS]), _TIMES_TRANSFERQUEUE
        )
        for result in results
        if PEER_GROUPS in result.rates
    }


def measured_columns() -> list[ColumnResult]:
    with (
        tempfile.TemporaryDirectory() as folder,
        MonitoredNats(Path(folder) / "nats") as server,
        spawned("workers", Workers().serve, server.settings, connections=1) as worker_process,
        spawned("ranks", ranks.serve, server.settings, connections=1) as rank_process,
        spawned("stage", StageSide().serve, server.settings, connections=1) as stage_process,
    ):
        scene = Scene(server=server, folder=Path(folder), workers=worker_process, ranks=rank_process)
        note("starting Ray and TransferQueue")
        with transferqueue(Path(folder) / "ray") as peer:
            return [measure_columns(scene, stage_process, size, peer) for size in SIZES]


def main() -> None:
    logs_to_stderr()
    steps, step_bars = measure_on_cpu(threads=_TRAINER_THREADS)
    columns = measured_columns()
    report(
        "stages",
        {
            "cores": os.cpu_count(),
            "transferqueue": VERSION,
            "columns": {result.size.name: result.figures() for result in columns},
            **steps,
        },
        {**column_bars(columns), **step_bars},
    )


if __name__ == "__main__":
    main()
