"""The bytes of a rank's file, and which of them another number of ranks reads."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from safetensors.torch import load

from trimtab.fabric.objects.upload import MAX_PARTS
from trimtab.trainer.checkpoints.index import CheckpointDamaged, CheckpointFile, sha256_of
from trimtab.trainer.checkpoints.layout import FileLayout, Shard
from trimtab.trainer.checkpoints.parts import PART_BYTES, HashedParts, part_bytes_for
from trimtab.trainer.checkpoints.shards import Box, plan_reads, runs
from trimtab.trainer.checkpoints.staging import StagedFile, Staging

PART = 64
"""Small, so that tensors lie across parts."""


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        "a.weight": torch.randn(7, 5),
        "b.weight": torch.randn(3, 11, 2).to(torch.bfloat16),
        "scalar": torch.tensor(4.5),
        "empty": torch.empty(0, 3),
        "random.0.cpu": torch.randint(0, 255, (13,), dtype=torch.uint8),
        "turned": torch.randn(4, 6).t(),
    }


def body_of(staged: StagedFile) -> bytes:
    return b"".join(staged.part(number) for number in range(-(-staged.size // staged.part_bytes)))


def test_a_staged_file_is_a_safetensors_file_of_the_same_values() -> None:
    staging = Staging(part_bytes=PART)
    staging.reserve(tensors())
    staged = staging.copy(tensors())
    body = body_of(staged)
    assert len(body) == staged.size
    read = load(body)
    assert read.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert torch.equal(read[name], tensor), name
        assert read[name].dtype == tensor.dtype


def test_the_memory_is_taken_once_and_holds_the_next_copy() -> None:
    staging = Staging(part_bytes=PART)
    first = staging.copy(tensors())
    again = staging.copy({name: tensor + 1 for name, tensor in tensors().items()})
    assert again.blocks == first.blocks
    assert torch.equal(load(body_of(again))["a.weight"], tensors()["a.weight"] + 1)
    assert sum(len(block.memory) for block in again.blocks) < again.size + PART


def test_a_layout_is_read_as_it_was_written() -> None:
    layout = FileLayout.of(
        [
            Shard(name="x", dtype=torch.uint8, shape=(3,), offsets=(6,)),
            Shard(name="y", dtype=torch.float32, shape=(2, 4), offsets=(10, 0)),
        ]
    )
    assert FileLayout.read(layout.header, where="here") == layout
    assert [placed.begin % placed.shard.dtype.itemsize for placed in layout.shards] == [0, 0]


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"x":{"dtype":"F32"}}', b'{"x":{"dtype":"?","shape":[],"data_offsets":[0,4]}}']
)
def test_a_header_that_is_none_is_refused_by_its_place(text: bytes) -> None:
    with pytest.raises(CheckpointDamaged, match="the header of s3://b/x cannot be read"):
        FileLayout.read(len(text).to_bytes(8, "little") + text, where="s3://b/x")


def test_parts_grow_with_files_that_would_have_too_many() -> None:
    assert part_bytes_for(1) == PART_BYTES
    for size in (MAX_PARTS * PART_BYTES, MAX_PARTS * PART_BYTES + 1, 3 * MAX_PARTS * PART_BYTES):
        assert -(-size // part_bytes_for(size)) <= MAX_PARTS


@pytest.mark.parametrize("shape", [(6,), (4, 5), (3, 2, 4), ()])
def test_runs_are_the_box_and_as_few_as_can_be(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    cuts = [[(begin, end) for begin in range(size) for end in range(begin, size + 1)] for size in shape]
    for box in itertools.product(*cuts):
        wanted = array[tuple(slice(*cut) for cut in box)].ravel()
        stretches = list(
            runs(shape, Box(offsets=tuple(cut[0] for cut in box), lengths=tuple(end - begin for begin, end in box)))
        )
        found = [element for begin, count in stretches for element in range(begin, begin + count)]
        assert found == wanted.tolist()
        breaks = np.count_nonzero(np.diff(wanted) != 1)
        assert len(stretches) <= breaks + 1


class Writers:
    """Ranks that each have a piece of every tensor, as files in memory."""

    def __init__(self, pieces: list[Mapping[str, tuple[tuple[int, ...], torch.Tensor]]]) -> None:
        self.files: dict[int, tuple[CheckpointFile, FileLayout]] = {}
        self.bodies: dict[int, bytes] = {}
        for rank, held in enumerate(pieces):
            layout = FileLayout.of(
                Shard(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape), offsets=offsets)
                for name, (offsets, tensor) in held.items()
            )
            body = layout.header + b"".join(
                held[placed.shard.name][1].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                for placed in layout.shards
            )
            parts = [body[begin : begin + PART] for begin in range(0, len(body), PART)]
            self.bodies[rank] = body
            self.files[rank] = (
                CheckpointFile(
                    rank=rank,
                    name=f"rank-{rank}",
                    size=len(body),
                    part_bytes=PART,
                    digests=tuple(map(sha256_of, parts)),
                    header_size=len(layout.header),
                    header_sha256=sha256_of(layout.header),
                ),
                layout,
            )

    def fill(self, targets: dict[str, torch.Tensor]) -> list[tuple[int, int]]:
        """The parts that were read for it."""
        plan = plan_reads(targets, {}, self.files)
        for rank, part in reversed(plan.parts):
            plan.take(rank, part, memoryview(bytearray(self.bodies[rank][part * PART : (part + 1) * PART])))
        plan.finish()
        return plan.parts


def cut(tensor: torch.Tensor, *, ranks: int, axis: int) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    pieces, position = [], 0
    for piece in tensor.chunk(ranks, dim=axis):
        offsets = tuple(position if one == axis else 0 for one in range(tensor.dim()))
        pieces.append((offsets, piece))
        position += piece.shape[axis]
    return pieces


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_one_rank_reads_what_several_wrote(ranks: int, axis: int) -> None:
    whole = torch.randn(9, 12)
    writers = Writers([{"x": piece} for piece in cut(whole, ranks=ranks, axis=axis)])
    target = torch.zeros(9, 12)
    writers.fill({"x": target})
    assert torch.equal(target, whole)


def test_a_tensor_that_does_not_lie_in_one_piece_is_filled_all_the_same() -> None:
    whole = torch.randn(9, 12)
    turned = torch.zeros(12, 9).t()
    Writers([{"x": piece} for piece in cut(whole, ranks=2, axis=0)]).fill({"x": turned})
    assert torch.equal(turned, whole)


def test_only_parts_with_something_for_it_are_read() -> None:
    """A small tensor behind a large one that nobody asks for."""
    large, small = torch.randn(1000), torch.randn(4)
    writers = Writers([{"large": ((0,), large), "small": ((0,), small)}])
    target = torch.zeros(4)
    assert len(writers.fill({"small": target})) <= 2
    assert torch.equal(target, small)
    assert len(writers.files[0][0].digests) > 60


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (torch.zeros(9, 13), "no fitting x"),
        (torch.zeros(9, 12, dtype=torch.bfloat16), "no fitting x"),
    ],
)
def test_what_does_not_fit_is_refused(target: torch.Tensor, reason: str) -> None:
    writers = Writers([{"x": ((0, 0), torch.randn(9, 12))}])
    with pytest.raises(CheckpointDamaged, match=reason):
        writers.fill({"x": target})


def test_a_hole_between_shards_is_noticed() -> None:
    first, _, last = cut(torch.randn(9, 12), ranks=3, axis=0)
    with pytest.raises(CheckpointDamaged, match="hold 72 of 108 values of x"):
        Writers([{"x": first}, {"x": last}]).fill({"x": torch.zeros(9, 12)})


def test_digests_are_of_the_parts_in_their_order_whatever_the_order_of_reading() -> None:
    staged = Staging(part_bytes=PART).copy(tensors())
    hashed = HashedParts(staged)
    count = -(-staged.size // PART)
    for number in [*reversed(range(count)), 0]:
        hashed.part(number)
    body = body_of(staged)
    assert list(hashed.digests) == [
        hashlib.sha256(body[begin : begin + PART]).hexdigest() for begin in range(0, len(body), PART)
    ]
