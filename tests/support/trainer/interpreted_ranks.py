"""Two ranks find what changed in the parts of a model that they hold, by the kernel, and bring it to the owners of the
blocks: as much as when all of it is copied to them and compared there.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.support.weights.small_blocks import cut_small_blocks
from trimtab.embedded.ports import free_ports
from trimtab.trainer import model_weights
from trimtab.trainer.model_weights import PublishedModel
from trimtab.trainer.network.spread import held_here
from trimtab.weights.baseline import WeightChanges, WeightShare
from trimtab.weights.codec.change import Bytes, apply_change
from trimtab.weights.layout import Block

_RANKS = 2
_BLOCK_BYTES = 1 << 10
_SHAPES = {"a": (31, 70), "b": (9, 1), "c": (1, 1_500), "d": (64, 64)}
"""Of the third the last rank holds nothing."""
_SHARES = (0.001, 0.0, 0.1, 1.0)
_TIMEOUT_S = 120.0


def check_ranks() -> None:
    (port,) = free_ports(1)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_rank, args=(rank, port)) for rank in range(_RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_TIMEOUT_S)
        assert process.exitcode == 0, "a rank failed; its traceback is above"


def _rank(rank: int, port: int) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address, RANK=str(rank), WORLD_SIZE=str(_RANKS))
    dist.init_process_group("gloo")
    cut_small_blocks(_BLOCK_BYTES)
    torch.manual_seed(0)
    model = torch.nn.ParameterDict({name: torch.randn(shape) for name, shape in _SHAPES.items()})
    fully_shard(model, mesh=init_device_mesh("cpu", (_RANKS,)))
    compared, copied = (PublishedModel(model, dtype=torch.bfloat16) for _ in range(2))
    with _taken_for_a_gpu():
        first = compared.weights()
    assert isinstance(first, WeightShare)
    assert first.own
    published = {block: _read(first, block) for block in first.own}
    torch.manual_seed(1 + rank)
    for share in _SHARES:
        _update(model, share=share)
        changes, now = compared.weights(), copied.weights()
        assert isinstance(changes, WeightChanges)
        assert isinstance(now, WeightShare)
        found = changes.by_block()
        assert bool(found) == bool(share)
        assert found.keys() <= {block.index for block in published}
        for block, content in published.items():
            if block.index in found:
                apply_change(found[block.index], content, width=block.element.width)
            np.testing.assert_array_equal(content, _read(now, block))
    dist.destroy_process_group()


@contextmanager
def _taken_for_a_gpu() -> Iterator[None]:
    on_gpu = model_weights._on_gpu
    model_weights._on_gpu = lambda tensors: True
    try:
        yield
    finally:
        model_weights._on_gpu = on_gpu


@torch.no_grad()
def _update(model: torch.nn.Module, *, share: float) -> None:
    for parameter in model.parameters():
        held = held_here(parameter)
        held[torch.rand(held.shape) < share] += 0.5


def _read(share: WeightShare, block: Block) -> Bytes:
    content = np.empty(block.size, dtype=np.uint8)
    share.read(block, content)
    return content
