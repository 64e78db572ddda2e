"""`python -m trimtab.rollout.sandbox`: the sandbox container of a rollout pod. It is given a folder and limits, and
neither credentials nor a manifest.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import resource
import signal
import sys
from pathlib import Path

import structlog

from trimtab.fabric.logs import configure_logs
from trimtab.fabric.pod import EXIT_MISCONFIGURED
from trimtab.fabric.settings import LogSettings
from trimtab.rollout.sandbox.contract import ProgramLimits
from trimtab.rollout.sandbox.layers import described
from trimtab.rollout.sandbox.local import LocalSandbox
from trimtab.rollout.sandbox.opening import TooLittleHolds
from trimtab.rollout.sandbox.server import serving

_log = structlog.get_logger(__name__)
_SPARE = 8


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trimtab.rollout.sandbox", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="where programs come from")
    parser.add_argument("--concurrency", type=int, required=True, help="programs at once")
    for limit in dataclasses.fields(ProgramLimits):
        name = f"--{limit.name.replace('_', '-')}"
        parser.add_argument(name, type=float if limit.name.endswith("_s") else int, default=limit.default)
    return parser.parse_args()


async def _main(arguments: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    limits = ProgramLimits(
        **{limit.name: getattr(arguments, limit.name) for limit in dataclasses.fields(ProgramLimits)}
    )
    concurrency = arguments.concurrency
    async with LocalSandbox(limits=limits, concurrency=concurrency, spare=min(_SPARE, concurrency)) as sandbox:
        _log.info("sandbox_ready", layers=described(sandbox.layers))
        # A few more, who ask for layers or wait.
        async with serving(sandbox, arguments.socket, connections=concurrency + 4):
            await stopping.wait()


def _open_many_files() -> None:
    """Each program needs a few descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    configure_logs(LogSettings(), stream=sys.stderr, role="sandbox")
    _open_many_files()
    try:
        asyncio.run(_main(_arguments()))
    except TooLittleHolds as error:
        _log.error("job_misconfigured", reason=f"workflow.sandbox: {error}")
        sys.exit(EXIT_MISCONFIGURED)
