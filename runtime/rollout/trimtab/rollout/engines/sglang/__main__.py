"""`python -m trimtab.rollout.engines.sglang`: launches SGLang under its own interpreter and keeps it running."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import click
import structlog

from trimtab.fabric.logs import configure_logs
from trimtab.fabric.pod import JobMisconfigured, run_pod
from trimtab.fabric.readable import unreadable
from trimtab.fabric.settings import LogSettings
from trimtab.rollout.engines.sglang.command import (
    HOST,
    AdapterRoom,
    child_environment,
    find_installation,
    refuse_owned,
    server_command,
)
from trimtab.rollout.engines.sglang.supervisor import Patience, ServerNotReady, ServerProbe, Supervisor

_log = structlog.get_logger(__name__)


@click.command()
@click.option("--model-path", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option(
    "--tokenizer-path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the tokenizer; otherwise the model's.",
)
@click.option("--port", type=int, required=True)
@click.option(
    "--interpreter",
    type=click.Path(path_type=Path),
    default=Path(sys.executable),
    help="Python that has SGLang; otherwise the one that runs this.",
)
@click.option("--lora-rank", type=click.IntRange(min=1), help="Make room for adapters of this rank.")
@click.option("--lora-targets", help="Projections that have them, with commas between, such as q_proj,v_proj.")
@click.option("--startup-timeout-seconds", type=float, default=1800.0, show_default=True)
@click.argument("sglang_arguments", nargs=-1, type=click.UNPROCESSED)
def main(
    *,
    model_path: Path,
    tokenizer_path: Path | None,
    port: int,
    interpreter: Path,
    lora_rank: int | None,
    lora_targets: str | None,
    startup_timeout_seconds: float,
    sglang_arguments: tuple[str, ...],
) -> None:
    """Serve a checkpoint with SGLang. What follows `--` goes to SGLang."""
    if (lora_rank is None) != (lora_targets is None):
        raise click.UsageError("--lora-rank and --lora-targets go together: give both or neither")
    room = None
    if lora_rank is not None and lora_targets is not None:
        room = AdapterRoom(rank=lora_rank, targets=tuple(lora_targets.split(",")))
    configure_logs(LogSettings(), stream=sys.stderr, role="engine")
    run_pod(
        _main(
            model_path=model_path,
            tokenizer_path=tokenizer_path,
            port=port,
            interpreter=interpreter,
            adapters=room,
            patience=Patience(startup_s=startup_timeout_seconds),
            extra=sglang_arguments,
        )
    )


async def _main(
    *,
    model_path: Path,
    tokenizer_path: Path | None,
    port: int,
    interpreter: Path,
    adapters: AdapterRoom | None,
    patience: Patience,
    extra: tuple[str, ...],
) -> None:
    stopping = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    refuse_owned(extra)
    if why := unreadable(model_path):
        raise JobMisconfigured(f"policies[].model.uri, served by pools[].engine: {why}")
    found = await find_installation(interpreter, environment=child_environment(os.environ, accelerator=True))
    _log.info("sglang_found", version=found.version, accelerator=found.accelerator)
    command = server_command(
        interpreter=interpreter,
        model_path=model_path,
        tokenizer_path=tokenizer_path,
        port=port,
        accelerator=found.accelerator,
        adapters=adapters,
        extra=extra,
        environ=os.environ,
    )
    async with AsyncExitStack() as stack:
        probe = ServerProbe.at(f"http://{HOST}:{port}", answer_s=patience.answer_s)
        stack.push_async_callback(probe.close)
        try:
            await Supervisor(command, probe, patience=patience).run(stopping)
        except ServerNotReady as error:
            # The kubelet, or the local executor, counts the failure and starts it again.
            _log.error("sglang_not_ready", reason=str(error))
            sys.exit(1)


if __name__ == "__main__":
    main()
