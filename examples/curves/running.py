"""Runs a manifest of an example with a seed, by what `trimtab run` runs it with, in a folder of its own."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from examples.curves.following import Follower
from examples.curves.measuring import policy_curves
from examples.curves.record import Run
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.pod import read_job
from trimtab.operator.local.job import LocalJob

EXAMPLES = Path(__file__).resolve().parent.parent
_POLL_S = 0.05


class NotTrainable(ValueError):
    """There is no such example, or nothing in it can be run here."""


def variants(example: str) -> dict[str, Path]:
    """The manifests of an example by name. Raises NotTrainable."""
    folder = EXAMPLES / example
    found = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if not found or not (folder / "make.py").exists():
        raise NotTrainable(f"{folder} is no example that can be run here: it needs make.py and manifests")
    return found


def prepare(example: str, folder: Path, *, seed: int) -> None:
    """Model and prompts of this seed, and whatever code lies beside the manifests."""
    folder.mkdir(parents=True, exist_ok=True)
    make = [sys.executable, "-m", f"examples.{example}.make", "--folder", str(folder), "--seed", str(seed)]
    made = subprocess.run(make, cwd=EXAMPLES.parent, capture_output=True, text=True)
    if made.returncode != 0:
        raise NotTrainable(f"{' '.join(make[1:])} failed:\n{made.stderr[-2000:]}")
    for module in (EXAMPLES / example).glob("*.py"):
        if module.stem != "make":
            shutil.copy(module, folder)


def write_manifest(source: Path, folder: Path, *, seed: int, steps: int | None = None) -> Path:
    """The manifest with this seed; with `steps`, it runs just so many, however well it does."""
    manifest = yaml.safe_load(source.read_text(encoding="utf-8"))
    manifest["spec"]["data"]["seed"] = seed
    if steps is not None:
        manifest["spec"]["maxSteps"] = steps
        manifest["spec"].pop("targetReward", None)
    path = folder / source.name
    path.write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
    return path


async def run_manifest(file: Path, *, seed: int) -> Run:
    """Raises JobFailed when the job was given up."""
    followed = await follow_manifest(file)
    return Run(variant=file.stem, seed=seed, policies=policy_curves(followed.headers, followed.records))


async def follow_manifest(file: Path) -> Follower:
    """All that the job wrote down. Raises JobFailed when it was given up."""
    job = read_job(file)
    state = file.parent / ".trimtab" / job.metadata.name
    state.mkdir(parents=True)
    local = LocalJob(job, job_file=file, folder=state)
    follower = Follower(local.topology)
    following = asyncio.create_task(_follow(local, follower))
    try:
        await local.run(asyncio.Event())
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    await follower.catch_up(EmbeddedNats(state / "nats"))
    return follower


async def _follow(local: LocalJob, follower: Follower) -> None:
    while local.watch is None:  # noqa: ASYNC110 - its servers are up when it watches
        await asyncio.sleep(_POLL_S)
    await follower.follow(local.nats.settings)
