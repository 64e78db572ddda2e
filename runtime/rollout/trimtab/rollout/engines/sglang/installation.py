"""What the interpreter that is to run SGLang has to offer, asked of the interpreter itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab.fabric.pod import JobMisconfigured

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
