"""What a transfer of weights takes end to end, through a real store: time over a slow link, memory on both sides, and
the trainer's time. `python -m benchmarks.weight_transfer` starts its own servers.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks.report import logs_to_stderr, report
from benchmarks.weights.slow_link import measure_slow_link
from benchmarks.weights.transfer_memory import measure_memory
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed


def main() -> None:
    logs_to_stderr()
    with (
        tempfile.TemporaryDirectory(prefix="trimtab-bench-") as name,
        EmbeddedNats(Path(name) / "nats") as nats,
        EmbeddedSeaweed(Path(name) / "seaweedfs") as store,
    ):
        memory, memory_bars = measure_memory(nats.settings, store.settings, Path(name))
        link, link_bars = asyncio.run(measure_slow_link(nats.settings, store.settings, Path(name)))
    report("weight_transfer", {**link, **memory}, {**link_bars, **memory_bars})


if __name__ == "__main__":
    main()
