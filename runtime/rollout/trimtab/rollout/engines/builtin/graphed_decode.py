"""Decodes on a GPU by CUDA graphs: a step of a small model is a thousand short kernels, and starting them one by one
takes longer than computing them. A graph per number of rows starts them all at once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

import torch

from trimtab.rollout.engines.builtin.kv_rows import Arena, KvShape
from trimtab.rollout.engines.builtin.transformer import Transformer
from trimtab.rollout.engines.builtin.weights import ServedWeights

_FINE = (1, 2, 4, 8, 16, 24, 32)
_STEP = 16
_WARM_UPS = 2
_INPUTS = 5
"""The token, and the four of `places` in decode_kernels."""


def hindrance() -> str | None:
    """Why this machine cannot: Triton compiles kernels, and with a C compiler their starters, when they are used."""
    try:
        import triton  # type: ignore[import-untyped] # noqa: F401 - only an engine on a GPU waits for it
    except ImportError:
        return "triton is not installed"
    if not any(map(shutil.which, (os.environ.get("CC", ""), "gcc", "clang", "cc"))):
        return "there is no C compiler, which Triton needs"
    return None


def bucket_sizes(most_rows: int) -> list[int]:
    """For how many rows there are graphs; a step of fewer is padded to the next."""
    coarse = range(_FINE[-1] + _STEP, most_rows + _STEP, _STEP)
    return [size for size in _FINE if size < most_rows] + [size for size in coarse if size < most_rows] + [most_rows]


class GraphedDecode:
    """The graphs of one set of weights, which must stay where they are: new ones are written into them."""

    def __init__(
        self, transformer: Transformer, weights: ServedWeights, shape: KvShape, *, most_rows: int, vocabulary: int
    ) -> None:
        self._shape = shape
        self._spare = shape.zeros(1, 1)
        """Where rows lie that pad a step."""
        spare_place = [0, 0, self._spare.data_ptr(), self._spare.stride(0), self._spare.stride(3)]
        self._spare_place = torch.tensor(spare_place)[:, None]
        self._staging = torch.zeros(_INPUTS, most_rows, dtype=torch.int64, pin_memory=True)
        self._logits = torch.empty(most_rows, vocabulary, device=shape.device, dtype=shape.dtype)
        self._graphs: dict[int, tuple[torch.Tensor, torch.cuda.CUDAGraph]] = {}
        pool = torch.cuda.graph_pool_handle()
        # The largest first: the smaller ones find its memory in the pool.
        for rows in reversed(bucket_sizes(most_rows)):
            self._graphs[rows] = self._captured(transformer, weights, rows, pool)
        self._graphs = dict(sorted(self._graphs.items()))

    def decode(self, arenas: Sequence[Arena[Any]], tokens: Sequence[int]) -> torch.Tensor:
        """Logits after one more token on every row, whose keys and values go behind those the row has. They are
        overwritten by the next step.
        """
        rows = next(size for size in self._graphs if size >= len(tokens))
        inputs, graph = self._graphs[rows]
        staged = self._staging[:, :rows]
        staged[:, : len(tokens)] = torch.tensor(row_places(tokens, arenas))
        staged[:, len(tokens) :] = self._spare_place
        inputs.copy_(staged)
        graph.replay()
        return self._logits[: len(tokens)]

    def _captured(
        self, transformer: Transformer, weights: ServedWeights, rows: int, pool: Any
    ) -> tuple[torch.Tensor, torch.cuda.CUDAGraph]:
        inputs = self._spare_place.repeat(1, rows).to(self._shape.device)

        def step() -> None:
            self._logits[:rows] = transformer.decode_in_place(weights, inputs[0], inputs[1:])

        # Kernels are compiled and libraries set up before anything is recorded.
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            step()
        return inputs, graph


def row_places(tokens: Sequence[int], arenas: Sequence[Arena[Any]]) -> list[list[int]]:
    """The inputs of a step: by input, then by row."""
    lengths: list[int] = []
    addresses: list[int] = []
    layer_strides: list[int] = []
    head_strides: list[int] = []
    for arena in arenas:
        count, storage = len(arena.rows), arena.storage
        first, stride = storage.data_ptr(), storage.stride(2) * storage.element_size()
        lengths += [row.length for row in arena.rows]
        addresses += range(first, first + count * stride, stride)
        layer_strides += [storage.stride(0)] * count
        head_strides += [storage.stride(3)] * count
    return [list(tokens), lengths, addresses, layer_strides, head_strides]
