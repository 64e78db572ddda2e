"""Ranks as processes of their own, forked from one that has imported what they need: a group takes a second."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.support.polling import eventually
from tests.support.template_process import TemplateProcess
from trimtab.embedded.ports import free_ports

_TIMEOUT_S = 240.0


def prepare() -> None:
    """Importing this module's users takes the time. Nothing may be computed here: what a backward pass or a process
    group starts does not survive a fork.
    """


async def run_ranks(template: TemplateProcess, work: Callable[..., None], *arguments: Any, world_size: int) -> None:
    """`work(*arguments, rank)` in each, with a process group where there are several; fails when any of them does."""
    (port,) = free_ports(1)
    for pid in [template.start(_as_rank, work, arguments, rank, world_size, port) for rank in range(world_size)]:
        endings: list[int] = []

        def ended(pid: int = pid, endings: list[int] = endings) -> bool:
            ending = template.ended(pid)
            endings.extend([] if ending is None else [ending])
            return ending is not None

        await eventually(ended, timeout_s=_TIMEOUT_S)
        assert os.waitstatus_to_exitcode(endings[0]) == 0, "a rank failed; its traceback is above"


def _as_rank(work: Callable[..., None], arguments: tuple[Any, ...], rank: int, world_size: int, port: int) -> None:
    # As in a pod. With more, threads of several ranks wait for one another's processors.
    torch.set_num_threads(1)
    if world_size > 1:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ.update(address, RANK=str(rank), WORLD_SIZE=str(world_size))
        dist.init_process_group("gloo")
    work(*arguments, rank)
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()
