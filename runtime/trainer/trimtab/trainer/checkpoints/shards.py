"""A rank's shards as torch.distributed.checkpoint plans them, in the files of its HuggingFaceStorageWriter.

Only the plan is its own: its writer makes a whole file in memory a second time, and its coordination sends pickled
plans between ranks. The files are the same, so its reader puts shards together for another number of ranks.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.tensor import DTensor

from trimtab.trainer.checkpoints.index import HOW_TO_GO_ON, CheckpointDamaged


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of a tensor, in main memory, and where in the whole it begins."""

    name: str
    offsets: tuple[int, ...]
    values: torch.Tensor


class Staging:
    """Copies shards to main memory, where they stay as they are while training goes on.

    The memory is used again for the next copy, so there must not be two checkpoints under way.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def copies(self, tensors: Mapping[str, torch.Tensor]) -> list[Shard]:
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(dict(tensors))
        shards = []
        on_gpu = False
        for item in planner.create_local_plan().items:
            values = planner.resolve_data(item)
            assert isinstance(values, torch.Tensor)
            assert item.tensor_data is not None
            buffer = self._buffer(item.index.fqn, values)
            buffer.copy_(values, non_blocking=True)
            on_gpu = on_gpu or values.is_cuda
            shards.append(Shard(name=item.index.fqn, offsets=tuple(item.tensor_data.chunk.offsets), values=buffer))
        if on_gpu:
            torch.cuda.synchronize()
        return shards

    def _buffer(self, name: str, values: torch.Tensor) -> torch.Tensor:
        known = self._buffers.get(name)
        if known is None or known.shape != values.shape or known.dtype != values.dtype:
            known = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
            self._buffers[name] = known
        return known


def write_shards(shards: list[Shard], path: Path) -> None:
    """Straight from the staged memory."""
    offsets = {shard.name: {"saved_offsets": shard.offsets} for shard in shards}
    metadata = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
    try:
        save_file({shard.name: shard.values for shard in shards}, path, metadata=metadata)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error


def show_header(path: Path, header: bytes, *, size: int) -> None:
    """A file that looks whole and has only its header: enough to plan with."""
    with path.open("wb") as file:
        file.write(header)
        file.truncate(size)


@torch.no_grad()
def read_shards(
    tensors: Mapping[str, torch.Tensor],
    optional: Mapping[str, torch.Tensor],
    folder: Path,
    *,
    bring: Callable[[set[str]], None],
) -> set[str]:
    """Fill tensors, as spread over the ranks as they are now, from files of which the folder has the headers.

    `bring` is called with the names of the files that are needed whole. Of `optional`, those that fit are filled too;
    all names that were read are returned.
    """
    reader = HuggingFaceStorageReader(str(folder))
    metadata = reader.read_metadata()
    saved = metadata.state_dict_metadata
    _check_fits(tensors, saved)
    wanted = dict(tensors) | {name: tensor for name, tensor in optional.items() if _fits(tensor, saved.get(name))}
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(wanted, metadata)
    plan = planner.create_local_plan()
    _check_complete(wanted, plan)
    bring({Path(reader.storage_data[item.storage_index].relative_path).name for item in plan.items})
    reader.read_data(plan, planner).wait()
    return set(wanted)


def _check_fits(tensors: Mapping[str, torch.Tensor], saved: Mapping[str, object]) -> None:
    for name, tensor in tensors.items():
        if not _fits(tensor, saved.get(name)):
            raise CheckpointDamaged(f"the checkpoint has no fitting {name}: was policies[].model changed?")


def _fits(tensor: torch.Tensor, saved: object) -> bool:
    return (
        isinstance(saved, TensorStorageMetadata)
        and saved.size == tensor.shape
        and saved.properties.dtype == tensor.dtype
    )


def _check_complete(wanted: Mapping[str, torch.Tensor], plan: LoadPlan) -> None:
    """The plan takes what there is; what no file had would keep the values of the model's own file."""
    found: Counter[str] = Counter()
    for item in plan.items:
        found[item.dest_index.fqn] += math.prod(item.lengths)
    for name, tensor in wanted.items():
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if found[name] != own.numel():
            raise CheckpointDamaged(
                f"the files of the checkpoint hold {found[name]} of {own.numel()} values of {name}; {HOW_TO_GO_ON}"
            )
