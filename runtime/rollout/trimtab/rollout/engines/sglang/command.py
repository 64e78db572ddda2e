"""How SGLang is started: what its interpreter has to offer, and its command line and environment, made up of ours, what
a machine without an accelerator needs, and the manifest's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.fabric.pod import JobMisconfigured
from trimtab.rollout.engines.sglang.adapters import MOST_LOADED
from trimtab.rollout.engines.sglang.sparse_update import LOADERS

HOST = "127.0.0.1"
BASE_VERSION = "0"
"""The model's own weights are version 0; a server that was started again says so until it is given others."""
_LOADER_FOLDER = Path(__file__).parent / "inside_sglang"
_OWNED = {
    "--model-path": "it follows from policies[].model.uri",
    "--model": "it follows from policies[].model.uri",
    "--tokenizer-path": "it follows from policies[].model.tokenizer",
    "--host": "the engine listens on loopback",
    "--port": "the pod chooses it",
    "--weight-version": "the first weights are version 0",
    "--custom-weight-loader": "sparse weight updates need it",
    "--api-key": "the worker beside it sends none",
    "--admin-api-key": "the worker beside it sends none",
    "--enable-lora": "it follows from policies[].lora",
    "--max-lora-rank": "it follows from policies[].lora.rank",
    "--lora-target-modules": "it follows from policies[].lora.targets",
    "--lora-paths": "adapters are those of the policy's trainer",
}
# SGLang would otherwise take most of the machine's memory for its cache, and use kernels that need a GPU.
_ON_CPU = (
    "--device=cpu",
    "--dtype=float32",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--max-total-tokens=32768",
)
# The other kernels for adapters are Triton's.
_ADAPTERS_ON_CPU = ("--lora-backend=torch_native",)
# /health generates a token otherwise, and so hangs in every pause; the launcher watches the scheduler by other means.
_ADDED = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false", "PYTHONUNBUFFERED": "1"}
_ADDED_ON_CPU = {"SGLANG_USE_CPU_ENGINE": "1"}
# Ours would make SGLang's interpreter import our packages; settings of the pod include credentials.
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_SETTINGS_PREFIX = "TRIMTAB_"
_PROBE = """
import importlib.metadata, json, torch
version = importlib.metadata.version("sglang")
accelerator = torch.accelerator.is_available() and torch.accelerator.current_accelerator().type != "cpu"
print(json.dumps({"version": version, "accelerator": accelerator}))
"""
_PROBE_DEADLINE_S = 180.0
"""Importing torch for the first time on a cold disk takes a minute."""
_ADVICE = "pools[].engine.interpreter must be the path of a Python that has sglang installed"


@dataclass(frozen=True, kw_only=True)
class AdapterRoom:
    """The adapters that a server is started for."""

    rank: int
    targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """What is executed, with the whole environment it gets."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def server_command(
    *,
    interpreter: Path,
    model_path: Path,
    tokenizer_path: Path | None = None,
    port: int,
    accelerator: bool,
    adapters: AdapterRoom | None = None,
    extra: Sequence[str],
    environ: Mapping[str, str],
) -> ServerCommand:
    """`extra` are the manifest's arguments. They come last, as SGLang's parser lets the last word win."""
    refuse_owned(extra)
    arguments = (
        str(interpreter), "-m", "sglang.launch_server",
        f"--model-path={model_path}",
        *(() if tokenizer_path is None else (f"--tokenizer-path={tokenizer_path}",)),
        f"--host={HOST}", f"--port={port}", f"--weight-version={BASE_VERSION}",
        "--custom-weight-loader", *LOADERS, "--log-level-http=warning",
        *(() if accelerator else _ON_CPU),
        *(() if adapters is None else _for_adapters(adapters, accelerator=accelerator)),
        *extra,
    )  # fmt: skip
    return ServerCommand(arguments=arguments, environment=child_environment(environ, accelerator=accelerator))


def _for_adapters(room: AdapterRoom, *, accelerator: bool) -> tuple[str, ...]:
    return (
        "--enable-lora", f"--max-lora-rank={room.rank}", "--lora-target-modules", *room.targets,
        f"--max-loaded-loras={MOST_LOADED}",
        *(() if accelerator else _ADAPTERS_ON_CPU),
    )  # fmt: skip


def child_environment(environ: Mapping[str, str], *, accelerator: bool) -> dict[str, str]:
    """Ours, without what is not SGLang's business. What a pod's template sets wins over what we add for it."""
    inherited = {
        name: value
        for name, value in environ.items()
        if name not in _NOT_INHERITED and not name.startswith(_SETTINGS_PREFIX)
    }
    added = _ADDED if accelerator else _ADDED | _ADDED_ON_CPU
    return added | inherited | {"PYTHONPATH": str(_LOADER_FOLDER)}


def refuse_owned(extra: Sequence[str]) -> None:
    """Raises JobMisconfigured for an argument that is not the manifest's to set, also where it is abbreviated."""
    for argument in extra:
        option = argument.partition("=")[0]
        owned = next((name for name in _OWNED if len(option) > 2 and name.startswith(option)), None)
        if owned is not None:
            raise JobMisconfigured(f"pools[].engine.args: {option} is not yours to set: {_OWNED[owned]}; leave it out")


@dataclass(frozen=True, kw_only=True)
class Installation:
    version: str
    accelerator: bool
    """A GPU or the like is there; otherwise SGLang has to be told to use the CPU."""


async def find_installation(interpreter: Path, *, environment: Mapping[str, str]) -> Installation:
    """Raises JobMisconfigured where there is no SGLang to be run."""
    try:
        process = await asyncio.create_subprocess_exec(
            interpreter,
            "-c",
            _PROBE,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise JobMisconfigured(f"{interpreter} cannot be run: {error.strerror}; {_ADVICE}") from None
    try:
        async with asyncio.timeout(_PROBE_DEADLINE_S):
            output, complaints = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise TimeoutError(f"{interpreter} did not import torch within {_PROBE_DEADLINE_S:.0f} s") from None
    if process.returncode != 0:
        said = complaints.decode(errors="replace").strip().splitlines() or ["(nothing)"]
        raise JobMisconfigured(f"{interpreter} has no usable SGLang: {said[-1]}; {_ADVICE}")
    return Installation(**json.loads(output.decode().splitlines()[-1]))
