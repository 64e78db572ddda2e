"""Learning curves of an example: `python -m examples.curves NAME --seeds 0 1 2` runs every manifest of it with every
seed, one after the other, and writes `curves.json`, `curves.svg` and `summary.md` to `examples/NAME/results`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

import click

from examples.curves.drawing import draw
from examples.curves.record import Run, read_curves, write_curves
from examples.curves.running import EXAMPLES, prepare, run_manifest, variants, write_manifest
from examples.curves.summary import summary
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.settings import LogSettings

_ENDS = 10


def main() -> None:
    arguments = _parser().parse_args()
    configure_logs(LogSettings(level="warning", format="console"), stream=sys.stderr)
    results = arguments.results or EXAMPLES / arguments.example / "results"
    manifests = variants(arguments.example)
    unknown = set(arguments.only or ()) - set(manifests)
    if unknown:
        sys.exit(f"--only {' '.join(sorted(unknown))}: the manifests are {', '.join(manifests)}")
    for seed in arguments.seeds:
        for name, source in manifests.items():
            if arguments.only and name not in arguments.only:
                continue
            began = time.monotonic()
            run = _run(arguments.example, source, seed=seed, steps=arguments.steps)
            click.echo(f"{name}, seed {seed}: {time.monotonic() - began:.0f} s; {_summary(run)}", err=True)
            # After each, so that a call that is stopped has not run in vain.
            curves = read_curves(results / "curves.json", example=arguments.example).with_run(run)
            write_curves(curves, results / "curves.json")
            draw(curves, results / "curves.svg")
            (results / "summary.md").write_text(summary(curves), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.curves", description=__doc__)
    parser.add_argument("example", help="a folder of examples/ with make.py and manifests")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", metavar="MANIFEST", help="not all manifests, but these (without .yaml)")
    parser.add_argument("--steps", type=int, help="so many trainer steps, whatever the manifest says")
    parser.add_argument("--results", type=Path, help="where to write  [default: examples/NAME/results]")
    return parser


def _run(example: str, source: Path, *, seed: int, steps: int | None) -> Run:
    with tempfile.TemporaryDirectory(prefix=f"trimtab-{example}-") as folder:
        prepare(example, Path(folder), seed=seed)
        return asyncio.run(run_manifest(write_manifest(source, Path(folder), seed=seed, steps=steps), seed=seed))


def _summary(run: Run) -> str:
    parts = []
    for policy, curve in run.policies.items():
        rewards = [point.reward for point in curve.steps]
        text = f"{policy}: {len(rewards)} steps, reward {fmean(rewards[:_ENDS]):.2f} to {fmean(rewards[-_ENDS:]):.2f}"
        for benchmark, points in curve.scores.items():
            text += f", {benchmark} {points[0].score:.2f} to {points[-1].score:.2f}"
        parts.append(text)
    return "; ".join(parts)


if __name__ == "__main__":
    main()
