"""What a rank reads of a checkpoint: which bytes of which files go where in its tensors, as torch's distributed
checkpoints plan it for any number of ranks that wrote and any that reads.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.tensor import DTensor

from trimtab.trainer.checkpoints.index import HOW_TO_GO_ON, CheckpointDamaged, CheckpointFile
from trimtab.trainer.checkpoints.layout import FileLayout, PlacedShard


@dataclass(frozen=True, kw_only=True)
class _Copy:
    """`count` bytes from `start` of a part to `position` of a tensor's bytes."""

    start: int
    count: int
    target: torch.Tensor
    position: int


class ReadPlan:
    """Which parts of which files to read, and where their bytes go."""

    def __init__(self) -> None:
        self._copies: dict[tuple[int, int], list[_Copy]] = {}
        self._aside: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.names: set[str] = set()
        """Of the tensors that it fills."""

    @property
    def parts(self) -> list[tuple[int, int]]:
        """Ranks whose files are read, with the number of a part."""
        return sorted(self._copies)

    @torch.no_grad()
    def take(self, rank: int, part: int, body: memoryview) -> None:
        """Several at a time, in threads: no two of them write to the same place."""
        whole = torch.frombuffer(body, dtype=torch.uint8)
        for copy in self._copies[rank, part]:
            copy.target[copy.position : copy.position + copy.count].copy_(whole[copy.start : copy.start + copy.count])

    @torch.no_grad()
    def finish(self) -> None:
        """Once all parts were taken."""
        for target, values in self._aside:
            target.copy_(values)

    def add(self, file: CheckpointFile, placed: PlacedShard, box: Box, target: torch.Tensor) -> None:
        """The bytes of a shard's box, into a tensor of the box's shape."""
        values = target.detach()
        if not values.is_contiguous():
            values = torch.empty_like(values, memory_format=torch.contiguous_format)
            self._aside.append((target.detach(), values))
        into = values.reshape(-1).view(torch.uint8)
        width, position = placed.shard.dtype.itemsize, 0
        for element, elements in runs(placed.shard.shape, box):
            begin, left = placed.begin + element * width, elements * width
            while left:
                part, start = divmod(begin, file.part_bytes)
                count = min(left, file.part_bytes - start)
                copies = self._copies.setdefault((file.rank, part), [])
                copies.append(_Copy(start=start, count=count, target=into, position=position))
                begin, position, left = begin + count, position + count, left - count


@dataclass(frozen=True, kw_only=True)
class Box:
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


def runs(shape: Sequence[int], box: Box) -> Iterator[tuple[int, int]]:
    """The box of an array in as few stretches of consecutive elements as there are: where each begins, and its
    elements.
    """
    if math.prod(box.lengths) == 0:
        return
    whole = len(shape)
    while whole and (box.offsets[whole - 1], box.lengths[whole - 1]) == (0, shape[whole - 1]):
        whole -= 1
    # The last dimension that is cut is consecutive as well; those before it are stepped through.
    outer = max(0, whole - 1)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    count = math.prod(box.lengths[outer:])
    inner = sum(box.offsets[axis] * strides[axis] for axis in range(outer, len(shape)))
    for place in itertools.product(*(range(box.lengths[axis]) for axis in range(outer))):
        steps = zip(place, box.offsets, strides, strict=False)
        yield inner + sum((offset + step) * stride for step, offset, stride in steps), count


def plan_reads(
    tensors: Mapping[str, torch.Tensor],
    optional: Mapping[str, torch.Tensor],
    files: Mapping[int, tuple[CheckpointFile, FileLayout]],
) -> ReadPlan:
    """To fill tensors, as spread over the ranks as they are now, from the files of the ranks that wrote. Of `optional`,
    those that fit are filled too.
    """
    placed: dict[tuple[str, tuple[int, ...]], tuple[CheckpointFile, PlacedShard]] = {}
    for file, layout in files.values():
        for one in layout.shards:
            placed[one.shard.name, one.shard.offsets] = (file, one)
    saved = _metadata([one for _, one in placed.values()])
    _check_fits(tensors, saved)
    wanted = dict(tensors) | {name: tensor for name, tensor in optional.items() if _fits(tensor, saved.get(name))}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(wanted, Metadata(state_dict_metadata=dict(saved)))
    items = planner.create_local_plan()
    _check_complete(wanted, items)
    plan = ReadPlan()
    plan.names = set(wanted)
    for item in items.items:
        assert item.storage_index.offset is not None
        file, one = placed[item.storage_index.fqn, tuple(item.storage_index.offset)]
        box = Box(offsets=tuple(item.storage_offsets), lengths=tuple(item.lengths))
        plan.add(file, one, box, planner.resolve_tensor(item))
    return plan


def _metadata(shards: Sequence[PlacedShard]) -> dict[str, TensorStorageMetadata]:
    """A whole tensor is as large as its shards reach."""
    found: dict[str, TensorStorageMetadata] = {}
    for placed in shards:
        shard = placed.shard
        reach = torch.Size(offset + length for offset, length in zip(shard.offsets, shard.shape, strict=True))
        chunk = ChunkStorageMetadata(offsets=torch.Size(shard.offsets), sizes=torch.Size(shard.shape))
        known = found.get(shard.name)
        if known is None:
            properties = TensorProperties(dtype=shard.dtype)
            found[shard.name] = TensorStorageMetadata(properties=properties, size=reach, chunks=[chunk])
        else:
            known.chunks.append(chunk)
            known.size = torch.Size(map(max, known.size, reach))
    return found


def _check_fits(tensors: Mapping[str, torch.Tensor], saved: Mapping[str, TensorStorageMetadata]) -> None:
    for name, tensor in tensors.items():
        if not _fits(tensor, saved.get(name)):
            raise CheckpointDamaged(f"the checkpoint has no fitting {name}: was policies[].model changed?")


def _fits(tensor: torch.Tensor, saved: TensorStorageMetadata | None) -> bool:
    return saved is not None and saved.size == tensor.shape and saved.properties.dtype == tensor.dtype


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
