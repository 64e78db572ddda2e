"""A model's weights as a publisher reads them: Hugging Face names, in the published type, a block at a time.

Master weights are rounded as they are read, so there is never a second copy of the model.
"""

from __future__ import annotations

import numpy as np
import torch

from trimtab.trainer.network.sharding import whole
from trimtab.weights.codec.change import Bytes
from trimtab.weights.layout import Block, StateLayout

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
    """A view of the model as it is now: read it before the next step changes it."""

    def __init__(self, model: torch.nn.Module, *, dtype: torch.dtype) -> None:
        self._tensors = unique_tensors(model)
        self._dtypes = {
            name: dtype if tensor.is_floating_point() else tensor.dtype for name, tensor in self._tensors.items()
        }
        self.layout = StateLayout.of(
            {name: (_DTYPES[self._dtypes[name]], tuple(tensor.shape)) for name, tensor in self._tensors.items()}
        )

    def read(self, block: Block, out: Bytes) -> None:
        width = block.element.width
        for tensor in self.layout.tensors_in(block):
            start, end = max(tensor.start, block.start), min(tensor.end, block.end)
            first, last = (start - tensor.start) // width, (end - tensor.start) // width
            values = self._tensors[tensor.name].reshape(-1)[first:last].to(self._dtypes[tensor.name])
            raw = values.contiguous().cpu().view(torch.uint8).numpy()
            np.copyto(out[start - block.start : end - block.start], raw)


def unique_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Each tensor once and whole: tied ones go under the first of their names, as save_pretrained does.

    All ranks call it together when the model is spread over them.
    """
    seen: set[int] = set()
    unique: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            unique[name] = whole(tensor.detach())
    return unique
