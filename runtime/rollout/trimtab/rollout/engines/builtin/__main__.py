"""`python -m trimtab.rollout.engines.builtin`: the engine process, with SGLang's names for its flags."""

from __future__ import annotations

import errno
import random
import sys
from pathlib import Path
from typing import NoReturn

import click
import torch
from aiohttp import web

from trimtab.fabric.readable import unreadable
from trimtab.rollout.engines.builtin.architecture import UnsupportedModelError
from trimtab.rollout.engines.builtin.batch import BatchLimits
from trimtab.rollout.engines.builtin.graphed_decode import hindrance
from trimtab.rollout.engines.builtin.low_rank import AdapterShape
from trimtab.rollout.engines.builtin.model import EngineModel
from trimtab.rollout.engines.builtin.scheduler import Scheduler
from trimtab.rollout.engines.builtin.server import EngineServer
from trimtab.rollout.engines.builtin.sparse_update import WeightMismatchError

_STOP_TIMEOUT_S = 5.0
_GPU_PREFILL = 4096


@click.command()
@click.option("--model-path", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option(
    "--tokenizer-path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the tokenizer; otherwise the model's.",
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, required=True)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    callback=lambda context, option, value: _device(value),
    help="As torch names it; auto is a GPU if there is one.",
)
@click.option(
    "--threads", type=int, default=1, show_default=True, help="CPU threads; more than idle cores slows it down."
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16"]),
    default="auto",
    show_default=True,
    help="What it computes with; auto is bfloat16 on a GPU and float32 on a CPU.",
)
@click.option(
    "--rounded-to",
    type=click.Choice(["bfloat16"]),
    help="Round the first weights to what a trainer publishes the later ones in.",
)
@click.option(
    "--disable-cuda-graph", is_flag=True, help="Start a GPU's kernels one by one: slower, but quicker to start."
)
@click.option("--lora-rank", type=click.IntRange(min=1), help="Make room for adapters of this rank.")
@click.option("--lora-alpha", type=float, help="Adapters are scaled by alpha/rank.")
@click.option("--lora-targets", help="Projections that have them, with commas between, such as q_proj,v_proj.")
@click.option("--value-head", is_flag=True, help="Say one number of each token by score.weight, and sample none.")
@click.option("--weight-version", default="0", show_default=True)
@click.option("--max-running-requests", type=int, default=BatchLimits.max_running, show_default=True)
@click.option("--max-queued-requests", type=int, default=4096, show_default=True)
@click.option("--max-total-tokens", type=int, default=BatchLimits.max_total_tokens, show_default=True)
@click.option("--max-cached-tokens", type=int, default=BatchLimits.max_cached_tokens, show_default=True)
@click.option(
    "--chunked-prefill-size",
    type=int,
    help="Tokens of prompts in one step, which a pause waits for; 512, on a GPU 4096.",
)
def main(
    *,
    model_path: Path,
    tokenizer_path: Path | None,
    host: str,
    port: int,
    device: str,
    threads: int,
    dtype: str,
    rounded_to: str | None,
    disable_cuda_graph: bool,
    lora_rank: int | None,
    lora_alpha: float | None,
    lora_targets: str | None,
    value_head: bool,
    weight_version: str,
    max_running_requests: int,
    max_queued_requests: int,
    max_total_tokens: int,
    max_cached_tokens: int,
    chunked_prefill_size: int | None,
) -> None:
    """Serve a transformers-format checkpoint of the Llama, Qwen2 or Qwen3 family."""
    if why := unreadable(model_path):
        raise UnsupportedModelError(why)
    torch.set_num_threads(threads)
    types = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}
    adapters = _adapters(lora_rank, alpha=lora_alpha, targets=lora_targets)
    model = EngineModel(
        model_path,
        device=device,
        dtype=types[dtype],
        adapters=adapters,
        value_head=value_head,
        rounded_to=None if rounded_to is None else types[rounded_to],
    )
    if device.startswith("cuda") and not disable_cuda_graph and not value_head:
        _capture(model, most_rows=max_running_requests)
    limits = BatchLimits(
        max_running=max_running_requests,
        max_total_tokens=max_total_tokens,
        max_cached_tokens=max_cached_tokens,
        prefill_tokens=chunked_prefill_size
        or (_GPU_PREFILL if device.startswith("cuda") else BatchLimits.prefill_tokens),
    )
    scheduler = Scheduler(model, weight_version=weight_version, limits=limits, max_held=max_queued_requests)
    scheduler.start()
    server = EngineServer(
        model, scheduler, model_path=model_path, tokenizer_path=tokenizer_path, seeds=random.SystemRandom()
    )
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


def _capture(model: EngineModel, *, most_rows: int) -> None:
    if why := hindrance():
        click.echo(f"decoding without CUDA graphs, several times slower: {why}", err=True)
    else:
        model.capture_graphs(most_rows=most_rows)


def _adapters(rank: int | None, *, alpha: float | None, targets: str | None) -> AdapterShape | None:
    if rank is None and alpha is None and targets is None:
        return None
    if rank is None or alpha is None or targets is None:
        raise click.UsageError("--lora-rank, --lora-alpha and --lora-targets go together: give all three or none")
    return AdapterShape(rank=rank, alpha=alpha, targets=frozenset(targets.split(",")))


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise click.BadParameter(f"torch sees no GPU for {name!r}: leave it out, or request a GPU for the engine")
    return name


def run() -> None:
    """Ends with the code for what no restart mends when the arguments or the checkpoint are of no use."""
    try:
        main(standalone_mode=False)
    except click.UsageError as error:
        _misconfigured(f"pools[].engine: {error.format_message()}")
    except (UnsupportedModelError, WeightMismatchError) as error:
        _misconfigured(f"policies[].model.uri, served by pools[].engine: {error}")
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        _misconfigured(f"pools[].engine: its port is taken by another process ({error.strerror}); start the job again")


def _misconfigured(message: str) -> NoReturn:
    # It brings the API types, which an engine that starts should not wait for.
    from trimtab.fabric.pod import EXIT_MISCONFIGURED

    click.echo(message, err=True)
    sys.exit(EXIT_MISCONFIGURED)


if __name__ == "__main__":
    run()
