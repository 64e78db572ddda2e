"""The model behind the built-in engine: which device and type it computes with, its passes, and taking new weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash

from trimtab.rollout.engines.builtin.architecture import read_architecture
from trimtab.rollout.engines.builtin.graphed_decode import GraphedDecode
from trimtab.rollout.engines.builtin.kv_rows import Arena, KvShape
from trimtab.rollout.engines.builtin.low_rank import AdapterShape, adapter_in
from trimtab.rollout.engines.builtin.sparse_update import PlacedUpdate, SparseUpdate, WeightMismatchError
from trimtab.rollout.engines.builtin.transformer import Piece, Transformer
from trimtab.rollout.engines.builtin.weights import ServedWeights

Staged = ServedWeights | dict[str, torch.Tensor]
"""A whole checkpoint, or adapters by their names."""


class EngineModel:
    """A causal language model. Not thread-safe: the scheduler's thread owns it; only `stage` and `place` may run
    elsewhere.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: str,
        dtype: torch.dtype | None = None,
        adapters: AdapterShape | None = None,
        value_head: bool = False,
        rounded_to: torch.dtype | None = None,
    ) -> None:
        """`adapters` is what it has room for, besides the model's own weights. With a `value_head` it says numbers of
        tokens, and samples none. `rounded_to` is what later versions are published in, and the first is to equal."""
        self._adapters = adapters
        self._device = torch.device(device)
        # Few CPUs compute bf16 faster than float32, and those without its instructions take a hundred times as long.
        self._dtype = dtype or (torch.bfloat16 if self._device.type == "cuda" else torch.float32)
        self.architecture = read_architecture(path, value_head=value_head)
        self._transformer = Transformer(self.architecture, device=self._device, dtype=self._dtype)
        self._weights = self._read(path, rounded_to=rounded_to)
        self._graphs: GraphedDecode | None = None
        self.kv_shape = KvShape(
            layers=self.architecture.layers,
            kv_heads=self.architecture.kv_heads,
            head_size=self.architecture.head_size,
            max_length=self.architecture.max_length,
            device=self._device,
            dtype=self._dtype,
        )

    @torch.inference_mode()
    def capture_graphs(self, *, most_rows: int) -> None:
        """Decode by CUDA graphs from now on, of so many rows at most."""
        self._graphs = GraphedDecode(
            self._transformer,
            self._weights,
            self.kv_shape,
            most_rows=most_rows,
            vocabulary=self.architecture.vocabulary,
        )

    @torch.inference_mode()
    def extend(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Logits after the last token of every sequence in the pieces."""
        return self._transformer.extend(self._weights, pieces)

    @torch.inference_mode()
    def score(
        self, pieces: Sequence[Piece], targets: Sequence[torch.Tensor], temperatures: Sequence[float]
    ) -> list[list[float]]:
        """Logprobs of the tokens that follow those of each piece, or what the value head says at each of them."""
        if self.architecture.value_head:
            return self._transformer.values(self._weights, pieces)
        return self._transformer.logprobs(self._weights, pieces, targets, temperatures)

    @torch.inference_mode()
    def decode(self, arenas: Sequence[Arena[Any]], tokens: Sequence[int]) -> torch.Tensor:
        """Logits after one more token on every row; the next step may overwrite them."""
        if self._graphs is not None:
            return self._graphs.decode(arenas, tokens)
        return self._transformer.decode(self._weights, arenas, tokens)

    @torch.inference_mode()
    def stage(self, folder: Path) -> Staged:
        """Read a whole checkpoint beside the one that is served, or adapters for it. Raises WeightMismatchError if it
        does not fit.
        """
        adapter = adapter_in(folder)
        if adapter is None:
            return self._read(folder)
        if self._adapters is None:
            raise WeightMismatchError(f"{folder} holds adapters, which the engine was not started for: see --lora-rank")
        self._adapters.check(adapter)
        return self._weights.staged_adapters(folder)

    def _read(self, folder: Path, *, rounded_to: torch.dtype | None = None) -> ServedWeights:
        return ServedWeights.read(
            folder,
            self.architecture,
            device=self._device,
            dtype=self._dtype,
            adapters=self._adapters,
            rounded_to=rounded_to,
        )

    @torch.inference_mode()
    def install(self, staged: Staged) -> None:
        """Serve what was staged."""
        if not isinstance(staged, ServedWeights):
            self._weights.adapt(staged)
        elif self._graphs is None:
            self._weights = staged
        else:
            self._weights.take(staged)

    @torch.inference_mode()
    def place(self, update: SparseUpdate) -> PlacedUpdate:
        """Get an update ready to be written, while others are served. WeightMismatchError if it does not fit."""
        tensors = tuple(map(self._weights.placed, update.tensors))
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return PlacedUpdate(base_version=update.base_version, tensors=tensors)

    @torch.inference_mode()
    def write(self, update: PlacedUpdate) -> None:
        """Change elements of the served weights."""
        self._weights.write(update.tensors)

    @torch.inference_mode()
    def checksum(self) -> str:
        """Of all served weights, by name."""
        digest = xxhash.xxh3_128()
        for name, tensor in sorted((self._weights.named | self._weights.adapted).items()):
            digest.update(name.encode())
            digest.update(tensor.contiguous().view(torch.uint8).cpu().numpy().data)
        return digest.hexdigest()
