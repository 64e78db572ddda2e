"""`python -m trimtab.rollout.engines.builtin`: the engine process, with SGLang's names for its flags."""

from __future__ import annotations

from pathlib import Path

import click
import torch
from aiohttp import web

from trimtab.rollout.engines.builtin.model import EngineModel
from trimtab.rollout.engines.builtin.scheduler import Scheduler
from trimtab.rollout.engines.builtin.server import EngineServer

_STOP_TIMEOUT_S = 5.0


@click.command()
@click.option("--model-path", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, required=True)
@click.option("--device", default="cpu", show_default=True)
@click.option(
    "--threads", type=int, default=1, show_default=True, help="CPU threads; more than idle cores slows it down."
)
@click.option("--weight-version", default="0", show_default=True)
@click.option("--max-running-requests", type=int, default=128, show_default=True)
@click.option("--max-queued-requests", type=int, default=4096, show_default=True)
def main(
    *,
    model_path: Path,
    host: str,
    port: int,
    device: str,
    threads: int,
    weight_version: str,
    max_running_requests: int,
    max_queued_requests: int,
) -> None:
    """Serve a transformers-format checkpoint."""
    torch.set_num_threads(threads)
    model = EngineModel(model_path, device=device)
    scheduler = Scheduler(
        model, weight_version=weight_version, max_batch=max_running_requests, max_waiting=max_queued_requests
    )
    scheduler.start()
    server = EngineServer(model, scheduler, model_path=model_path)
    web.run_app(
        server.application(),
        host=host,
        port=port,
        print=None,
        access_log=None,
        shutdown_timeout=_STOP_TIMEOUT_S,
        handler_cancellation=True,  # a client that hangs up takes its request with it
    )
    if server.failed:
        raise click.ClickException(str(scheduler.death))


if __name__ == "__main__":
    main()
