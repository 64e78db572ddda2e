"""Checkpoints against raw parallel transfers of the same bytes to the same store: `python -m benchmarks.checkpoints`.

The store is an embedded SeaweedFS on the same processors, so whatever the client computes is taken from the store.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.report import Bar, logs_to_stderr, report
from benchmarks.training.checkpoint_steps import measure_checkpointed_steps
from benchmarks.training.checkpoint_transfer import measure_transfer
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.trainer.checkpoints.parts import AT_ONCE, PART_BYTES

LAYERS = 2
ROUNDS = 5
ROWS = 24


def main() -> None:
    logs_to_stderr()
    with (
        tempfile.TemporaryDirectory(prefix="trimtab-bench-") as name,
        EmbeddedSeaweed(Path(name) / "seaweedfs") as store,
    ):
        transfer = measure_transfer(store.settings, layers=LAYERS, rounds=ROUNDS)
        apart, together = (
            measure_checkpointed_steps(store.settings, rows=ROWS, rounds=ROUNDS, core_of_its_own=own)
            for own in (True, False)
        )
    report(
        "checkpoints",
        {
            "transfer": transfer.figures(),
            "step_on_a_core_of_its_own": apart.figures(),
            "step_on_shared_cores": together.figures(),
        },
        {
            "write_share_of_raw": Bar(transfer.write_share, 0.8),
            "read_over_transfer_manager": Bar(transfer.read_over_managed, 1.0),
            "write_memory_in_parts": Bar(transfer.write_memory / PART_BYTES, AT_ONCE, at_most=True),
            "read_memory_in_parts": Bar(transfer.read_memory / PART_BYTES, AT_ONCE, at_most=True),
            "checkpointed_step": Bar(apart.processor_ratio, 1.05, at_most=True),
        },
    )


if __name__ == "__main__":
    main()
