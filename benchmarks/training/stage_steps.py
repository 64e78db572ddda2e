"""What stages and streaming do for the trainer's step. `python -m benchmarks.training.stage_steps` measures it where
there is a GPU, with neither NATS nor a store; `python -m benchmarks.stages` on a CPU, beside the rest.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.report import Bar, logs_to_stderr, report
from benchmarks.training.reference_step import measure_reference
from benchmarks.training.streamed_step import GOALS, measure_streaming
from benchmarks.training.workbench import Workbench, on_cpu, on_gpu


def measure(bench: Workbench) -> tuple[dict[str, object], dict[str, Bar]]:
    reference = measure_reference(bench)
    streamed = [measure_streaming(bench, algorithm) for algorithm in GOALS]
    figures: dict[str, object] = {
        "reference": reference.figures(),
        "streaming": {one.algorithm: one.figures() for one in streamed},
    }
    bars = reference.bars()
    for one in streamed:
        bars |= one.bars()
    return figures, bars


def measure_on_cpu(*, threads: int) -> tuple[dict[str, object], dict[str, Bar]]:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
        return measure(on_cpu(Path(folder)))


def main() -> None:
    logs_to_stderr()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29711", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("cpu:gloo,cuda:nccl")
    try:
        with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
            figures, bars = measure(on_gpu(Path(folder)))
    finally:
        dist.destroy_process_group()
    report("stages.steps", {"device": torch.cuda.get_device_name(), **figures}, bars)


if __name__ == "__main__":
    main()
