"""A model's weights as a publisher reads them: Hugging Face names, in the published type, a block at a time.

Master weights of a single rank on a CPU are rounded as they are read, so there is no second copy of the model. On a GPU
there is one in the published type, which the next version is compared with (device_shadow.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from trimtab.trainer import ranks
from trimtab.trainer.network.policy_network import held_here, whole
from trimtab.weights.adapters import Adapter
from trimtab.weights.baseline import WeightChanges, WeightSource
from trimtab.weights.codec.change import Bytes
from trimtab.weights.layout import Block, StateLayout

if TYPE_CHECKING:
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
    """A view of the model as it is now: read it before the next step changes it.

    All ranks make it together when the model is spread over them. Then rank 0 alone has something to read: a copy in
    the published type, in main memory.
    """

    def __init__(self, model: torch.nn.Module, *, dtype: torch.dtype, adapter: Adapter | None = None) -> None:
        tensors = unique_tensors(model)
        self._dtypes = {name: dtype if tensor.is_floating_point() else tensor.dtype for name, tensor in tensors.items()}
        self.layout = StateLayout.of(
            {name: (_DTYPES[self._dtypes[name]], tuple(tensor.shape)) for name, tensor in tensors.items()},
            metadata=None if adapter is None else adapter.metadata(),
        )
        self._tensors = {}
        for name, tensor in tensors.items():
            # One after the other: there is never more than one of them whole beside the model.
            readable = _readable(tensor, dtype=self._dtypes[name])
            if readable is not None:
                self._tensors[name] = readable

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

    def weights(self) -> WeightSource | WeightChanges:
        """As they are now: all of them at first, and on a GPU from then on what changed since the last call."""
        if self._shadow is not None:
            return self._shadow.take(self._held())
        everything = ModelWeights(self._model, dtype=self._dtype, adapter=self._adapter)
        if ranks.world_size() == 1 and all(tensor.is_cuda for tensor in self._held().values()):
            # Triton is wherever torch has a GPU, and need not be elsewhere.
            from trimtab.trainer.device_shadow import DeviceShadow

            if DeviceShadow.fits(self._held(), published=self._dtype):
                self._shadow = DeviceShadow(everything.layout, self._held(), published=self._dtype)
        return everything

    def _held(self) -> dict[str, torch.Tensor]:
        return {name: held_here(tensor) for name, tensor in unique_tensors(self._model).items()}


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


@torch.no_grad()
def _readable(tensor: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor | None:
    """What is not spread is read where it lies. None on ranks that do not read."""
    if not isinstance(tensor, DTensor):
        return tensor
    gathered = whole(tensor)
    return gathered.to(dtype).cpu() if tensor.device_mesh.get_rank() == 0 else None
