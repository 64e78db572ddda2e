"""What this machine has, and whether a job will find room on it. Needs are estimates from the sizes of model files, so
they warn; what is missing altogether is a problem.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.filesize import decimal

from trimtab.api.job import RLJob
from trimtab.api.placement import policies_of
from trimtab.api.policy import Policy
from trimtab.api.pool import JobPool
from trimtab.cli.finding import Finding, fine, problem, warning
from trimtab.cli.model_checks import config_of
from trimtab.embedded.ports import free_ports

_PORTS = 32
"""Of the servers and of a few pods."""
_LEAST_DISK_BYTES = 1 << 30
_WIDTHS = {"float32": 4, "float64": 8}
_TRAINER_BYTES = 16
"""For each weight: itself, its gradient and two moments in float32."""
_CHECKPOINT_BYTES = 12
_GPUS = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """`folder` is where the job's state will lie."""

    folder: Path
    free_disk_bytes: int
    free_memory_bytes: int
    gpus: int
    ports: bool
    """Whether servers find ports to listen on."""

    @classmethod
    def here(cls, folder: Path) -> Machine:
        there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
        return cls(
            folder=folder,
            free_disk_bytes=shutil.disk_usage(there).free,
            free_memory_bytes=psutil.virtual_memory().available,
            gpus=sum(device.name[6:].isdigit() for device in Path("/dev").glob("nvidia*")),
            ports=_has_ports(),
        )


def weighed(job: RLJob, beside: Path, machine: Machine) -> list[Finding]:
    """`beside` is the folder of the manifest, which paths of models are relative to."""
    return [*bare(machine), *_disk(job, beside, machine), *_memory(job, beside, machine), *_gpus(job, machine)]


def bare(machine: Machine) -> Iterator[Finding]:
    """Of the machine, whatever runs on it."""
    if not machine.ports:
        yield problem(f"ports: there are no {_PORTS} free ports on 127.0.0.1 for the job's servers; end what has them")
    if machine.free_disk_bytes < _LEAST_DISK_BYTES:
        yield problem(
            f"disk: {decimal(machine.free_disk_bytes)} are free for {machine.folder}, and the streams alone need "
            f"{decimal(_LEAST_DISK_BYTES)}; free some, or give --state-folder on another disk"
        )
    else:
        yield fine(f"{decimal(machine.free_disk_bytes)} of disk are free for {machine.folder}")
    yield fine(f"{decimal(machine.free_memory_bytes)} of memory are available")
    yield fine(f"{machine.gpus} GPUs" if machine.gpus else "no GPU: models are computed on the processor")


def _disk(job: RLJob, beside: Path, machine: Machine) -> Iterator[Finding]:
    needed = 0
    for policy in job.spec.learning:
        weights = _weights(policy, beside)
        # Checkpoints, two whole copies in the store, and one for each pod.
        pods = sum(pool.replicas for pool in _pools_of(job, policy))
        needed += weights * (policy.trainer.checkpoint.keep * _CHECKPOINT_BYTES + (2 + pods) * 2)
    if needed > machine.free_disk_bytes:
        yield warning(
            f"disk: checkpoints and weights of this job take about {decimal(needed)}, and "
            f"{decimal(machine.free_disk_bytes)} are free for {machine.folder}; lower trainer.checkpoint.keep, or give "
            "--state-folder on a larger disk"
        )


def _memory(job: RLJob, beside: Path, machine: Machine) -> Iterator[Finding]:
    if machine.gpus:
        return
    needed = 0
    for policy in job.spec.policies:
        weights = _weights(policy, beside)
        engines = sum(_engines(pool, policy) * pool.replicas for pool in _pools_of(job, policy))
        needed += weights * (4 * engines + (0 if policy.frozen else _TRAINER_BYTES))
    if needed > machine.free_memory_bytes:
        yield warning(
            f"memory: trainers and engines of this job take about {decimal(needed)}, and "
            f"{decimal(machine.free_memory_bytes)} are available; use a smaller model, or fewer replicas of pools"
        )


def _gpus(job: RLJob, machine: Machine) -> Iterator[Finding]:
    for pool in job.spec.pools:
        if pool.engine.name == "sglang" and pool.engine.url is None and not machine.gpus:
            yield warning(
                f"spec.pools[{pool.name}].engine: sglang computes on GPUs, and here is none; use engine builtin"
            )
    for policy in job.spec.learning:
        asked = policy.trainer.resources.limits.get(_GPUS)
        ranks = policy.trainer.devices_per_replica * policy.trainer.replicas
        if asked is not None and ranks > machine.gpus:
            yield warning(
                f"spec.policies[{policy.name}].trainer: it asks for {ranks} GPUs, and here are {machine.gpus}"
            )


def _pools_of(job: RLJob, policy: Policy) -> list[JobPool]:
    """Those that launch engines for it here."""
    return [
        pool
        for pool in job.spec.pools
        if pool.engine.url is None and policy in policies_of(job.spec, pool, name=pool.name)
    ]


def _engines(pool: JobPool, policy: Policy) -> int:
    own = next((engines for engines in pool.engines if engines.policy == policy.name), None)
    if own is None:
        return 1
    return 0 if own.endpoint is not None else own.replicas


def _weights(policy: Policy, beside: Path) -> int:
    """How many it has, by the bytes of its files; 0 where they are not here."""
    if policy.model is None:
        return 0
    folder = beside / policy.model.uri
    if not folder.is_dir():
        return 0
    config = config_of(folder) or {}
    width = _WIDTHS.get(str(config.get("dtype") or config.get("torch_dtype")), 2)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) // width


def _has_ports() -> bool:
    try:
        free_ports(_PORTS)
    except OSError:
        return False
    return True
