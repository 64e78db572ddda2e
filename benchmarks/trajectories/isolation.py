"""From publish to the batch in the rank, with workers, dataflow and rank in accounts of their own and with all three in
the one that has the streams, in turns on the same server.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

from benchmarks.isolated_bus import admit, settings_in
from benchmarks.report import interleaved, note
from benchmarks.trajectories import ranks
from benchmarks.trajectories.broker import MonitoredNats
from benchmarks.trajectories.pod import NAMESPACE
from benchmarks.trajectories.rounds import ROUNDS, Scene, Size, opened_job, our_rounds
from benchmarks.trajectories.spawned import spawned
from benchmarks.trajectories.workers import Workers
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.bus.topology import JobTopology


class MonitoredNatsWithAccounts(MonitoredNats, EmbeddedNatsWithAccounts):
    """Both."""


def measure_isolation(folder: Path, size: Size) -> dict[str, list[float]]:
    """Rows per second, by round, `isolated` and in `one_account`."""
    with ExitStack() as stack:
        server = stack.enter_context(MonitoredNatsWithAccounts(folder / f"isolated-{size.name}"))
        plays = {}
        for name in ("isolated", "one_account"):
            job = f"{name.replace('_', '-')}-{size.payload_bytes}"
            # Its own, as a service that finds its prompts written anew begins anew.
            own_folder = folder / job
            own_folder.mkdir()
            topology = JobTopology(NAMESPACE, job)
            asyncio.run(admit(server, topology))
            roles = {role: role if name == "isolated" else None for role in ("rollout", "trainer", "dataflow")}
            settings = {role: settings_in(server, topology, role=own, folder=own_folder) for role, own in roles.items()}
            scene = Scene(
                server=server,
                folder=own_folder,
                workers=stack.enter_context(spawned("workers", Workers().serve, settings["rollout"], connections=1)),
                ranks=stack.enter_context(spawned("ranks", ranks.serve, settings["trainer"], connections=1)),
                dataflow=settings["dataflow"],
            )
            pod, _ = stack.enter_context(opened_job(scene, size, name=job))
            plays[name] = our_rounds(scene, pod, size, [])
        rates = interleaved(plays, rounds=ROUNDS)
    note(f"isolation, {size.name}: { {name: [round(one) for one in values] for name, values in rates.items()} } rows/s")
    return rates
