"""A whole job on one GPU: trainer, engine, dataflow, NATS and object storage, with a model of 1.5 billion weights, run
asynchronously and synchronously. Needs a GPU.

    python -m benchmarks.rl_gpu [--engine sglang --interpreter PYTHON] [--steps 12]

Synchronous is `maxStaleness: 0`; everything else is the same.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
import yaml

from benchmarks.gpu.job_log import JobLog
from benchmarks.gpu.random_model import write_model, write_prompts
from benchmarks.report import Bar, logs_to_stderr, note, report

_WORKFLOW = Path(__file__).parent / "gpu/first_letters.py"
_GROUP, _BATCH = 8, 64
_PROMPT_TOKENS, _NEW_TOKENS = 200, 512
_STALENESS = 4
_WARM_UP = 3
_JOB_TIMEOUT_S = 540.0
_SGLANG = (
    "--dtype=bfloat16", "--attention-backend=triton", "--sampling-backend=pytorch", "--grammar-backend=none",
    "--skip-server-warmup", "--disable-flashinfer-autotune", "--mm-feature-transport=cpu",
    "--mem-fraction-static=0.25", "--cuda-graph-backend-prefill=disabled", "--cuda-graph-max-bs-decode=128",
)  # fmt: skip
_BUILTIN = ("--max-total-tokens=262144", "--max-cached-tokens=65536", "--threads=4")


def _manifest(*, name: str, engine: dict[str, Any], staleness: int, steps: int, publish_every: int) -> dict[str, Any]:
    return {
        "apiVersion": "rl.trimtab.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {
            "maxSteps": steps,
            "workflow": {"entrypoint": "first_letters:FirstLetters", "source": {"path": "."}},
            "data": {
                "prompts": [{"name": "train", "jsonl": {"uri": "prompts.jsonl"}}],
                "groupSize": _GROUP,
                "batchSize": _BATCH,
                "maxStaleness": staleness,
            },
            "policies": [
                {
                    "name": "solver",
                    "model": {"uri": "model"},
                    "algorithm": {"name": "grpo", "optimizer": {"learningRate": 1e-6}},
                    "sampling": {"maxTokens": _NEW_TOKENS},
                    "trainer": {
                        "dtype": "bfloat16",
                        "microBatchTokens": 24_576,
                        "gradientCheckpointing": False,
                        "checkpoint": {"everySteps": 1000, "uri": "checkpoints"},
                        "publish": {"everySteps": publish_every},
                    },
                }
            ],
            "pools": [{"name": "local", "replicas": 1, "maxConcurrency": 128, "engine": engine}],
        },
    }


def _run(folder: Path, manifest: dict[str, Any]) -> tuple[JobLog, float]:
    """Its log, and how long it took. The checkpoint at its end is most of its disk, and goes."""
    name = manifest["metadata"]["name"]
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(manifest), encoding="utf-8")
    began = time.monotonic()
    command = [sys.executable, "-m", "trimtab.cli.main", "run", "--fresh", str(file)]
    ran = subprocess.run(command, stdout=sys.stderr, stderr=sys.stderr, timeout=_JOB_TIMEOUT_S)
    took = time.monotonic() - began
    state = folder / ".trimtab" / name
    log = JobLog.read(state / "logs")
    if ran.returncode != 0:
        for file in sorted((state / "logs").glob("*.log")):
            note(f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}")
        raise click.ClickException(f"{name} ended with {ran.returncode}")
    shutil.rmtree(state, ignore_errors=True)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return log, took


def _figures(log: JobLog, took: float) -> dict[str, Any]:
    steps, busy = log.steps_s(warm_up=_WARM_UP), log.busy_s(warm_up=_WARM_UP)
    seconds = sum(steps) / len(steps)
    return {
        "step_s": round(seconds, 3),
        "busy_s": round(median(busy), 3),
        "sampled_tokens_per_s": round(_BATCH * _NEW_TOKENS / seconds),
        "trained_tokens_per_s": round(_BATCH * (_NEW_TOKENS + _PROMPT_TOKENS) / seconds),
        "waiting": round(1 - sum(busy) / sum(steps), 3),
        "logprob_mismatch": log.mean("logprob_mismatch", warm_up=_WARM_UP),
        "sampling_drift": log.mean("sampling_drift", warm_up=_WARM_UP),
        "publication": log.publication(),
        "job_s": round(took, 1),
    }


@click.command()
@click.option("--engine", "engine_name", type=click.Choice(["builtin", "sglang"]), default="builtin", show_default=True)
@click.option("--interpreter", help="The Python that has SGLang.")
@click.option("--steps", type=int, default=12, show_default=True)
def main(engine_name: str, interpreter: str | None, steps: int) -> None:
    """Measure a whole job, three times."""
    logs_to_stderr()
    engine: dict[str, Any] = {"name": engine_name, "args": list(_SGLANG if engine_name == "sglang" else _BUILTIN)}
    if interpreter is not None:
        engine["interpreter"] = interpreter
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        weights = write_model(folder / "model", seed=0)
        write_prompts(folder / "prompts.jsonl", count=4096, tokens=_PROMPT_TOKENS, seed=0)
        shutil.copy(_WORKFLOW, folder)
        variants = {
            "asynchronous": {"staleness": _STALENESS, "publish_every": 1},
            "synchronous": {"staleness": 0, "publish_every": 1},
            "rarely_published": {"staleness": _STALENESS, "publish_every": 4},
        }
        runs: dict[str, dict[str, Any]] = {}
        for name, settings in variants.items():
            manifest = _manifest(name=name.replace("_", "-"), engine=engine, steps=steps, **settings)
            runs[name] = _figures(*_run(folder, manifest))
            note(f"{name}: {runs[name]}")
    asynchronous, synchronous = runs["asynchronous"], runs["synchronous"]
    publication = asynchronous["publication"]
    report(
        "rl_gpu",
        {"device": torch.cuda.get_device_name(), "engine": engine_name, "weights": weights, **runs},
        {
            "times_synchronous": Bar(synchronous["step_s"] / asynchronous["step_s"], 1.3),
            "step_with_publication_over_one_without": Bar(
                asynchronous["busy_s"] / runs["rarely_published"]["busy_s"], 1.05, at_most=True
            ),
            "trained_to_served_s": Bar(publication["served_s"], 1.5, at_most=True),
            "pause_s": Bar(publication["pause_s"], 0.1, at_most=True),
        },
    )


if __name__ == "__main__":
    main()
