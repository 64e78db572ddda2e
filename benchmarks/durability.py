"""What durability costs on a job's row path, and how long a job is without its dataflow: `python -m
benchmarks.durability` starts nats-servers of its own. One syncs now and then, one before it acknowledges, and three
keep three replicas; on each, rows go from publish to the batch in the rank, against raw JetStream likewise set up.
It also recovers jobs of `--sizes` trajectories, as `benchmarks.recovery` does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import recovery
from benchmarks.report import Bar, interleaved, logs_to_stderr, note, paired_share, report
from benchmarks.trajectories import ranks, workers
from benchmarks.trajectories.broker import MonitoredNats
from benchmarks.trajectories.payloads import POLICY
from benchmarks.trajectories.pod import NAMESPACE, dataflow_pod
from benchmarks.trajectories.rounds import ROUNDS, Scene, Size, opened_job, our_rounds, raw_rounds
from benchmarks.trajectories.spawned import spawned
from tests.support.fabric.nats_cluster import ClusteredNats, nats_cluster
from tests.support.fabric.synced_nats import SyncedNats
from trimtab.embedded.nats_server import SYNC_INTERVAL_S
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology

_SIZE = Size(name="32KiB", payload_bytes=32 << 10, batch_size=256, steps=12)
_SHARE = 0.6
_FAILOVER_S = 10.0
_FAILOVER_STEP = 2
"""The first after those that a job begins with."""
_DEADLINE_S = 120.0
_SERVERS = 3


class AlwaysSyncedNats(SyncedNats, MonitoredNats):
    """Both."""


class MonitoredClusteredNats(MonitoredNats, ClusteredNats):
    """Both."""


Rates = dict[str, list[float]]


def _rates(server: MonitoredNats, folder: Path, *, replicas: int, name: str) -> Rates:
    """Rows per second, by round, of a job and of raw JetStream in turns. All dial this one server."""
    asyncio.run(_declared(server, JobTopology(NAMESPACE, name, replicas=replicas)))
    with (
        spawned("workers", workers.Workers().serve, server.settings, connections=1) as worker_process,
        spawned("ranks", ranks.serve, server.settings, connections=1) as rank_process,
    ):
        scene = Scene(server=server, folder=folder, workers=worker_process, ranks=rank_process)
        with opened_job(scene, _SIZE, name=name) as (pod, _):
            contenders = {
                "trimtab": our_rounds(scene, pod, _SIZE, []),
                "raw_jetstream": raw_rounds(scene, _SIZE, decoded=True, replicas=replicas),
            }
            rates = interleaved(contenders, rounds=ROUNDS)
    note(f"{name}: { {who: [round(one) for one in values] for who, values in rates.items()} } rows/s")
    return rates


async def _declared(server: MonitoredNats, topology: JobTopology) -> None:
    """As the operator makes a job's streams: its dataflow takes them as they are."""
    async with await Bus.connect(server.settings, name="declaring") as bus:
        await declare_job(bus, topology, deadline_s=_DEADLINE_S)


async def _replicated_rates(folder: Path) -> Rates:
    async with nats_cluster(folder / "cluster", kind=MonitoredClusteredNats) as cluster:
        first = next(iter(cluster.servers.values()))
        assert isinstance(first, MonitoredNats)
        return await asyncio.to_thread(_rates, first, folder, replicas=_SERVERS, name="replicated")


def _failover_s(server: MonitoredNats, folder: Path) -> float:
    """From the end of a dataflow that is killed while a rank waits for a step to that step's batch in the rank, which
    a second process gives it that begins when the first is dead."""
    with (
        spawned("workers", workers.Workers().serve, server.settings, connections=1) as worker_process,
        spawned("ranks", ranks.serve, server.settings, connections=1) as rank_process,
    ):
        scene = Scene(server=server, folder=folder, workers=worker_process, ranks=rank_process)
        with opened_job(scene, _SIZE, name="failover") as (pod, _):
            first = _FAILOVER_STEP * _SIZE.batch_size
            steps = range(_FAILOVER_STEP, _FAILOVER_STEP + 1)
            rows = range(first, first + _SIZE.batch_size)
            rank_process.tell(ranks.Train(topology=pod.topology, steps=steps, row_numbers=rows))
            os.kill(pod.pid, signal.SIGKILL)
            killed = time.monotonic()
            subject = pod.topology.trajectory_subject(POLICY)
            worker_process.ask(workers.Publish(subject=subject, first=first, count=len(rows)), deadline_s=_DEADLINE_S)
            with dataflow_pod("failover", batch_size=_SIZE.batch_size, folder=folder, server=server):
                received = rank_process.heard(deadline_s=_DEADLINE_S)
    return float(received.at.max()) - killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=(10_000, 100_000), help="of jobs to recover")
    sizes = parser.parse_args().sizes
    logs_to_stderr()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with MonitoredNats(folder / "plain") as server:
            measured = {"one_replica": _rates(server, folder, replicas=1, name="one-replica")}
            failover_s = _failover_s(server, folder)
        note(f"failover: {failover_s:.2f} s")
        with AlwaysSyncedNats(folder / "synced") as server:
            measured["sync_always"] = _rates(server, folder, replicas=1, name="sync-always")
        measured["three_replicas"] = asyncio.run(_replicated_rates(folder))
    recovered = asyncio.run(recovery.measured(sizes))
    report(
        "durability",
        {
            "payload": _SIZE.name,
            "sync_interval_s_of_the_others": SYNC_INTERVAL_S,
            "rows_per_s": {
                setting: {who: round(statistics.median(values)) for who, values in rates.items()}
                for setting, rates in measured.items()
            },
            "recovery_by_trajectories": recovered,
        },
        {
            **{
                f"share_of_raw_jetstream_{setting}": Bar(paired_share(rates["trimtab"], rates["raw_jetstream"]), _SHARE)
                for setting, rates in measured.items()
            },
            "failover_s": Bar(failover_s, _FAILOVER_S, at_most=True),
            "recovery_s": Bar(max(one["recovery_s"] for one in recovered.values()), recovery.LONGEST_S, at_most=True),
        },
    )


if __name__ == "__main__":
    main()
