"""A model's weights as a publisher reads them: Hugging Face names, in the published type, a block at a time.

Master weights of a single rank on a CPU are rounded as they are read, so there is no second copy of the model. Of
several ranks each has a copy of its share (spread_weights.py). On a GPU each rank has one, in the published type, of
what it holds there, which the next version is compared with (device_shadow.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from trimtab.trainer import ranks
from trimtab.trainer.change_exchange import ChangeExchange, ExchangedChanges
from trimtab.trainer.network.spread import held_here
from trimtab.trainer.spread_weights import SpreadWeights
from trimtab.weights.adapters import Adapter
from trimtab.weights.baseline import WeightChanges, WeightShare, WeightSource
from trimtab.weights.codec.change import Bytes
from trimtab.weights.layout import Block, StateLayout

if TYPE_CHECKING:
    from trimtab.trainer.block_shares import BlockShares
    from trimtab.trainer.device_shadow import DeviceShadow

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class ModelWeights:
    """A view of the model of a single rank as it is now: read it before the next step changes it."""

    def __init__(self, model: torch.nn.Module, *, dtype: torch.dtype, adapter: Adapter | None = None) -> None:
        tensors = unique_tensors(model)
        self._dtypes = published_types(tensors, dtype=dtype)
        self.layout = layout_of(tensors, self._dtypes, adapter=adapter)
        self._tensors = {name: held_here(tensor) for name, tensor in tensors.items()}

    def read(self, block: Block, out: Bytes) -> None:
        width = block.element.width
        for tensor in self.layout.tensors_in(block):
            start, end = max(tensor.start, block.start), min(tensor.end, block.end)
            first, last = (start - tensor.start) // width, (end - tensor.start) // width
            values = self._tensors[tensor.name].reshape(-1)[first:last].to(self._dtypes[tensor.name])
            raw = values.contiguous().cpu().view(torch.uint8).numpy()
            np.copyto(out[start - block.start : end - block.start], raw)


class PublishedModel:
    """A model whose weights are read again and again. All ranks make every call together."""

    def __init__(self, model: torch.nn.Module, *, dtype: torch.dtype, adapter: Adapter | None = None) -> None:
        """`adapter` says what the weights are, where they are not those of a whole model."""
        self._model = model
        self._dtype = dtype
        self._adapter = adapter
        self._shadow: DeviceShadow | None = None
        self._exchange: ChangeExchange | None = None
        self._share: SpreadWeights | None = None

    def weights(self) -> WeightSource | WeightShare | WeightChanges:
        """As they are now: all of them at first, and on GPUs from then on what changed since the last call. Of several
        ranks each gets the blocks that it owns, in a copy that the next call overwrites, or their changes.
        """
        if self._shadow is not None:
            changes = self._shadow.take(self._held())
            return changes if self._exchange is None else ExchangedChanges(changes, self._exchange)
        if ranks.world_size() > 1:
            share = self._copied_share()
            self._find_changes(share.layout, shares=share.shares)
            return share
        everything = ModelWeights(self._model, dtype=self._dtype, adapter=self._adapter)
        self._find_changes(everything.layout, shares=None)
        return everything

    def _find_changes(self, layout: StateLayout, *, shares: BlockShares | None) -> None:
        """From here on where the weights are, if that is on GPUs and all ranks can."""
        held = self._held()
        if not _on_gpu(held):
            return
        # Triton is wherever torch has a GPU, and need not be elsewhere.
        from trimtab.trainer.device_shadow import DeviceShadow

        (hindered,) = ranks.maxima(not DeviceShadow.fits(held, published=self._dtype))
        if hindered:
            return
        segments = None
        if shares is not None:
            segments = shares.held_by(ranks.rank())
            self._exchange = ChangeExchange(layout, shares)
            # It is the publisher's now, and not needed again.
            self._share = None
        self._shadow = DeviceShadow(layout, held, published=self._dtype, segments=segments)

    def _copied_share(self) -> SpreadWeights:
        if self._share is None:
            tensors = unique_tensors(self._model)
            dtypes = published_types(tensors, dtype=self._dtype)
            spread = frozenset(name for name, tensor in tensors.items() if isinstance(tensor, DTensor))
            self._share = SpreadWeights(layout_of(tensors, dtypes, adapter=self._adapter), dtypes, spread=spread)
        self._share.copy(self._held())
        return self._share

    def _held(self) -> dict[str, torch.Tensor]:
        return {name: held_here(tensor) for name, tensor in unique_tensors(self._model).items()}


def _on_gpu(tensors: Mapping[str, torch.Tensor]) -> bool:
    return all(tensor.is_cuda for tensor in tensors.values())


def unique_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Each tensor once, spread over the ranks as it is: tied ones go under the first of their names, as save_pretrained
    does.
    """
    seen: set[int] = set()
    unique: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            unique[name] = tensor.detach()
    return unique


def published_types(tensors: Mapping[str, torch.Tensor], *, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Floats are published in `dtype`, everything else as it is."""
    return {name: dtype if tensor.is_floating_point() else tensor.dtype for name, tensor in tensors.items()}


def layout_of(
    tensors: Mapping[str, torch.Tensor], dtypes: Mapping[str, torch.dtype], *, adapter: Adapter | None
) -> StateLayout:
    """The same however the tensors are spread."""
    return StateLayout.of(
        {name: (_DTYPES[dtypes[name]], tuple(tensor.shape)) for name, tensor in tensors.items()},
        metadata=None if adapter is None else adapter.metadata(),
    )
