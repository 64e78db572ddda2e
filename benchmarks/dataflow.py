"""From publish to the batch in the rank: rate, latency and cost of the dataflow, as a share of raw JetStream and beside
TransferQueue on the same payloads in the same run, and whether a trajectory costs the same when a million wait.

`python -m benchmarks.dataflow` starts nats-server, the dataflow pod, a process of workers, one of a rank, and Ray.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.isolated_bus import SHARE
from benchmarks.report import Bar, logs_to_stderr, note, paired_share, report
from benchmarks.trajectories import ranks
from benchmarks.trajectories.broker import MonitoredNats
from benchmarks.trajectories.isolation import measure_isolation
from benchmarks.trajectories.ledger_cost import bytes_per_trajectory, measure_ledger, queued_ledger, replaying_ledger
from benchmarks.trajectories.queue_cost import measure_queue
from benchmarks.trajectories.rounds import PEER_GROUPS, Scene, Size, SizeResult, measure_ranks, measure_size
from benchmarks.trajectories.spawned import spawned
from benchmarks.trajectories.transferqueue import VERSION, transferqueue
from benchmarks.trajectories.workers import Workers

SIZES = (
    Size(name="2KiB", payload_bytes=2 << 10, batch_size=1024, steps=12),
    Size(name="32KiB", payload_bytes=32 << 10, batch_size=256, steps=12),
    Size(name="512KiB", payload_bytes=512 << 10, batch_size=32, steps=10),
)
# None at 512 KiB: TransferQueue keeps rows in memory and JetStream writes them to disk, which alone is slower there.
_TIMES_TRANSFERQUEUE = {"2KiB": 3.0, "32KiB": 1.0}
HEADERS_ONLY = TWO_RANKS = SIZES[1]
"""Where the share of bytes through the service is judged, and where two ranks share the rows."""
ISOLATED = SIZES[:2]
"""Where jobs with accounts of their own are compared with one account for all."""
SHORT, LONG_BUS, LONG_LEDGER = 1_000, 100_000, 1_000_000
"""Queued trajectories. A million through NATS would take minutes, so that many go straight into a ledger."""
SHORT_TOTAL = 20_000
HELD = 10_000
PARTS, CUT_TOTAL = 4, 96_000
"""Rows of an episode, and how many of them, where episodes of one row and of several are compared."""


def size_bars(results: Sequence[SizeResult]) -> dict[str, Bar]:
    bars: dict[str, Bar] = {}
    for result in results:
        name, rates = result.size.name, result.rates
        bars[f"share_of_raw_jetstream_{name}"] = Bar(paired_share(rates["trimtab"], rates["raw_jetstream"]), 0.6)
        if PEER_GROUPS in rates and name in _TIMES_TRANSFERQUEUE:
            times = paired_share(rates["trimtab"], rates[PEER_GROUPS])
            bars[f"times_transferqueue_{name}"] = Bar(times, _TIMES_TRANSFERQUEUE[name])
        if result.size is HEADERS_ONLY:
            bars[f"service_bytes_share_{name}"] = Bar(result.service_share, 0.05, at_most=True)
    return bars


def main() -> None:
    logs_to_stderr()
    with (
        tempfile.TemporaryDirectory() as folder,
        MonitoredNats(Path(folder) / "nats") as server,
        spawned("workers", Workers().serve, server.settings, connections=1) as worker_process,
        spawned("ranks", ranks.serve, server.settings, connections=1) as rank_process,
    ):
        scene = Scene(server=server, folder=Path(folder), workers=worker_process, ranks=rank_process)
        note("starting Ray and TransferQueue")
        with transferqueue(Path(folder) / "ray") as peer:
            results = [measure_size(scene, size, peer) for size in SIZES]
        with spawned("two-ranks", ranks.serve, server.settings, connections=2) as two_ranks:
            two_ranks_rate = measure_ranks(replace(scene, ranks=two_ranks), TWO_RANKS, name="two-ranks")
        queues = [
            measure_queue(scene, queued=SHORT, total=SHORT_TOTAL),
            measure_queue(scene, queued=LONG_BUS, total=LONG_BUS),
        ]
        cut_queues = [measure_queue(scene, queued=CUT_TOTAL // 4, total=CUT_TOTAL, parts=parts) for parts in (1, PARTS)]
        isolation = {size.name: measure_isolation(Path(folder), size) for size in ISOLATED}
    ledgers = [
        measure_ledger(queued=SHORT, total=SHORT_TOTAL),
        measure_ledger(queued=LONG_LEDGER, total=LONG_LEDGER),
    ]
    cut_ledgers = [measure_ledger(queued=CUT_TOTAL // 4, total=CUT_TOTAL, parts=parts) for parts in (1, PARTS)]
    queued = bytes_per_trajectory(lambda: queued_ledger(HELD), trajectories=HELD)
    replayable = bytes_per_trajectory(lambda: replaying_ledger(HELD), trajectories=HELD)
    report(
        "dataflow",
        {
            "cores": os.cpu_count(),
            "transferqueue": VERSION,
            "sizes": {result.size.name: result.figures() for result in results},
            "isolation_rows_per_s": {
                name: {way: round(statistics.median(values)) for way, values in rates.items()}
                for name, rates in isolation.items()
            },
            f"two_ranks_rows_per_s_{TWO_RANKS.name}": round(two_ranks_rate),
            "service_cpu_s_per_100k_by_queue": {cost.queued: round(cost.cpu_s_per_100k, 2) for cost in queues},
            "ledger_cpu_s_per_100k_by_queue": {cost.queued: round(cost.cpu_s_per_100k, 2) for cost in ledgers},
            "service_cpu_s_per_100k_by_rows_of_an_episode": {
                parts: round(cost.cpu_s_per_100k, 2) for parts, cost in zip((1, PARTS), cut_queues, strict=True)
            },
            "ledger_cpu_s_per_100k_by_rows_of_an_episode": {
                parts: round(cost.cpu_s_per_100k, 2) for parts, cost in zip((1, PARTS), cut_ledgers, strict=True)
            },
            "service_resident_mb_per_100k_queued": round(queues[-1].resident_bytes_per_100k / 1e6, 1),
            "ledger_bytes_per_queued": round(queued),
            "ledger_bytes_per_replayable": round(replayable),
        },
        {
            **size_bars(results),
            **{
                f"isolated_share_of_one_account_{name}": Bar(
                    paired_share(rates["isolated"], rates["one_account"]), SHARE
                )
                for name, rates in isolation.items()
            },
            "service_cost_100k_over_1k_queued": Bar(
                queues[1].cpu_s_per_100k / queues[0].cpu_s_per_100k, 1.5, at_most=True
            ),
            "service_cost_of_a_row_4_over_1_in_an_episode": Bar(
                cut_queues[1].cpu_s_per_100k / cut_queues[0].cpu_s_per_100k, 1.0, at_most=True
            ),
            "ledger_cost_of_a_row_4_over_1_in_an_episode": Bar(
                cut_ledgers[1].cpu_s_per_100k / cut_ledgers[0].cpu_s_per_100k, 1.0, at_most=True
            ),
            "bytes_per_trajectory_in_a_pool_of_10k": Bar(replayable, 1024, at_most=True),
            "ledger_cost_1M_over_1k_queued": Bar(
                ledgers[1].cpu_s_per_100k / ledgers[0].cpu_s_per_100k, 1.5, at_most=True
            ),
        },
    )


if __name__ == "__main__":
    main()
