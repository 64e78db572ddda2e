"""Finds out once, by trying, what the kernel lets us put around programs, and begins with the most of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.rollout.agents import landlock
from trimtab.rollout.agents.files import readable
from trimtab.rollout.sandbox import bubblewrap
from trimtab.rollout.sandbox.contract import Program, SandboxFailed
from trimtab.rollout.sandbox.jails import JailLate, Zygote
from trimtab.rollout.sandbox.layers import Layer, LayerName, too_little

_MAX_PROGRAM_BYTES = 512 << 20
_TRY = Program(command=("python3", "-c", ""))
_TRY_S = 60.0
_WITHHELD = "it was not asked for"


class TooLittleHolds(SandboxFailed):
    """Nothing may be run here, and trying again would not help."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    zygote: Zygote
    layers: Sequence[Layer]


async def open_zygote(folder: Path, *, without: frozenset[LayerName]) -> Opened:
    """With programs' folders in `folder` where there are no namespaces.

    Raises TooLittleHolds with what is missing, and JailLate.
    """
    missing = dict.fromkeys(LayerName, "")
    missing[LayerName.LANDLOCK] = _landlock_missing(without)
    zygote, why = await _tried(folder, namespaces=True) if LayerName.NAMESPACES not in without else (None, _WITHHELD)
    if zygote is None:
        missing[LayerName.NAMESPACES] = why
        zygote, why = await _tried(folder, namespaces=False)
    if zygote is None:
        missing[LayerName.SECCOMP] = why
    layers = [Layer(name, why) for name, why in missing.items()]
    refused = too_little(layers)
    if zygote is None or refused:
        if zygote is not None:
            await zygote.close()
        raise TooLittleHolds(refused)
    return Opened(zygote=zygote, layers=layers)


async def _tried(folder: Path, *, namespaces: bool) -> tuple[Zygote | None, str]:
    """One that has run a first program; or why there is none."""
    try:
        zygote = _zygote(folder, namespaces=namespaces)
        await _try(zygote)
    except JailLate:
        raise
    except SandboxFailed as error:
        return None, str(error)
    return zygote, ""


async def _try(zygote: Zygote) -> None:
    zygote.start()
    try:
        async with asyncio.timeout(_TRY_S):
            jail = await zygote.jail()
            with contextlib.closing(jail):
                ended = await jail.run(_TRY)
    except TimeoutError:
        await zygote.close()
        raise JailLate(f"a first program did not end within {_TRY_S:g} s") from None
    except SandboxFailed:
        await zygote.close()
        raise
    if not ended.succeeded:
        await zygote.close()
        raise SandboxFailed(f"python3 does not run there: {ended.stderr[-300:].decode(errors='replace').strip()}")


def _landlock_missing(without: frozenset[LayerName]) -> str:
    version = 0 if LayerName.LANDLOCK in without else landlock.version()
    able = landlock.missing(version)
    return f"with version {version} of it a program could {', '.join(able)}" if able else ""


def _zygote(folder: Path, *, namespaces: bool) -> Zygote:
    interpreter = bubblewrap.own_interpreter()
    path = bubblewrap.search_path(interpreter)
    around = {"most_bytes": _MAX_PROGRAM_BYTES, "path": path}
    if not namespaces:
        # What is installed for the interpreter, and the environment that we run in ourselves.
        hidden = [*map(str, interpreter.hidden), *({sys.prefix} - {sys.base_prefix})]
        found = readable(("python3",), source=None, more=(), executables=path, but=hidden)
        whole = [place for place in found.whole if place != "/proc"]
        settings = {**around, "folder": str(folder), "read": whole, "listed": list(found.listed)}
        code = str(Path(__file__).parents[3])
        return Zygote(
            _with_settings(settings, lambda words: bubblewrap.zygote(interpreter, words, code=code)), namespaces=False
        )
    bwrap = bubblewrap.find_bubblewrap()
    if bwrap is None:
        raise SandboxFailed("bubblewrap is not installed: install trimtab with its extra `rollout`")
    settings = {**around, "folder": None, "read": list(bubblewrap.readable(interpreter)), "listed": ["/"]}
    return Zygote(_with_settings(settings, lambda words: bubblewrap.walled(bwrap, interpreter, words)), namespaces=True)


def _with_settings(
    settings: dict[str, object], command: Callable[[Sequence[str]], Sequence[str]]
) -> Callable[[int], Sequence[str]]:
    return lambda descriptor: command([str(descriptor), json.dumps(settings)])
