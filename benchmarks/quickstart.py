"""Does the product learn, how fast, and is it really asynchronous: the quickstart from random weights, for three seeds.

`python -m benchmarks.quickstart` runs `trimtab run` as a person would and then reads the job's streams.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import Bar, logs_to_stderr, note, report
from examples.streams import figures, read_streams
from trimtab.fabric.bus.topology import JobTopology

_QUICKSTART = Path(__file__).parent.parent / "examples" / "quickstart"
_TIMEOUT_S = 400


def run_seed(seed: int, folder: Path) -> dict[str, Any]:
    subprocess.run(
        [sys.executable, "-m", "examples.quickstart.make", "--folder", str(folder), "--seed", str(seed)],
        check=True,
        capture_output=True,
    )
    job = yaml.safe_load((_QUICKSTART / "job.yaml").read_text())
    job["spec"]["data"]["seed"] = seed
    shutil.copy(_QUICKSTART / "slow_tool.py", folder)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    started = time.monotonic()
    arguments = [sys.executable, "-m", "trimtab.cli.main", "run", str(folder / "job.yaml")]
    completed = subprocess.run(arguments, stdout=sys.stderr, stderr=sys.stderr, timeout=_TIMEOUT_S)
    seconds = time.monotonic() - started
    if completed.returncode != 0:
        raise SystemExit(f"seed {seed}: trimtab run ended with {completed.returncode}")
    name = job["metadata"]["name"]
    streams = asyncio.run(read_streams(folder / ".trimtab" / name, JobTopology("default", name)))
    return {"seed": seed, "seconds": round(seconds, 1), **figures(streams)}


def main() -> None:
    logs_to_stderr()
    results = []
    for seed in (0, 1, 2):
        with tempfile.TemporaryDirectory() as folder:
            note(f"seed {seed}")
            results.append(run_seed(seed, Path(folder)))
            note(str(results[-1]))
    report(
        "quickstart",
        {"seeds": results},
        {
            "last_reward_worst_seed": Bar(min(result["last_reward"] for result in results), 0.9),
            "seconds_worst_seed": Bar(max(result["seconds"] for result in results), 180.0, at_most=True),
            "overlap_of_training_worst_seed": Bar(min(result["overlap_of_training"] for result in results), 0.9),
        },
    )


if __name__ == "__main__":
    main()
