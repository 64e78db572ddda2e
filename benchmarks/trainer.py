"""How fast a training step is, and what it costs besides computing: `python -m benchmarks.trainer`.

On the CPU, a small model on long-tailed lengths: our packed step against a padded one and TRL's, then the real loop
with rows at hand, with and without publication. Figures of a GPU come along where there is one.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path

import torch

from benchmarks.report import Bar, logs_to_stderr, report
from benchmarks.training.checkpoint_signing import measure_signing
from benchmarks.training.loop_steps import measure_loop
from benchmarks.training.step_comparison import measure_steps
from benchmarks.training.step_data import Lengths, make_model, make_rows, max_over_mean
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed

THREADS = 1
"""More than idle cores slows everything down by a factor that depends on the neighbours."""
ROWS = 48
LOOP_ROWS = 24
"""Of those, for the loop: shorter steps, on which a fixed cost weighs more."""
SEED = 2
LONG_TAILED = 6.0
"""The longest answer, in means."""


def gpu_figures() -> tuple[dict[str, object], dict[str, Bar]]:
    """Loaded only where there is one: its kernels are imported with it."""
    if not torch.cuda.is_available():
        return {}, {}
    figures, bars = importlib.import_module("benchmarks.training.gpu_step").measure()
    return {"gpu": figures}, bars


def main() -> None:
    logs_to_stderr()
    torch.set_num_threads(THREADS)
    with (
        tempfile.TemporaryDirectory(prefix="trimtab-bench-") as name,
        EmbeddedNats(Path(name) / "nats") as nats,
        EmbeddedSeaweed(Path(name) / "seaweedfs") as store,
    ):
        folder = Path(name)
        model = folder / "model"
        make_model(model, seed=0)
        rows = make_rows(model, count=ROWS, lengths=Lengths(), seed=SEED)
        if max_over_mean(rows) < LONG_TAILED:
            raise ValueError(f"the longest answer is {max_over_mean(rows):.1f} means; take another seed")
        steps, step_bars = measure_steps(rows, model_path=model, folder=folder / "trl", threads=THREADS)
        apart, together = (
            measure_loop(
                rows[:LOOP_ROWS],
                model_path=model,
                nats=nats.settings,
                objects=store.settings,
                folder=folder,
                threads=threads,
                core_of_its_own=own,
            )
            for threads, own in ((THREADS, True), (os.cpu_count() or 1, False))
        )
        signing = measure_signing(store.settings)
    gpu, gpu_bars = gpu_figures()
    figures = {
        "step": steps,
        "checkpoint_signing": signing.figures(),
        "loop_own_core": apart.figures(),
        "loop_all_cores": together.figures(),
        **gpu,
    }
    bars = {
        **step_bars,
        "step_with_publication_own_core": Bar(apart.publishing_over_silent, 1.02, at_most=True),
        "processor_time_with_publication": Bar(apart.processor_ratio, 1.02, at_most=True),
        "checkpoint_signing_share": Bar(signing.share, 0.01, at_most=True),
        "step_overhead_share": Bar(apart.overhead_share, 0.03, at_most=True),
        **gpu_bars,
    }
    report("trainer", figures, bars)


if __name__ == "__main__":
    main()
