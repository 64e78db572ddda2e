"""Ranks that read the weights of a model that is spread over them, each a process of its own."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from tests.support.trainer.samples import policy
from trimtab.trainer.learner import Learner
from trimtab.trainer.model_weights import ModelWeights

RANKS = 2


def run_rank(model: Path, target: Path, rank: int) -> None:
    """Fails unless rank 0 alone keeps something, in the published type, and no two tensors are ever whole at once."""
    learner = Learner(policy(dtype="bfloat16"), model_path=model)
    gathered: list[weakref.ref[torch.Tensor]] = []
    gather = DTensor.full_tensor

    def watched(tensor: DTensor) -> torch.Tensor:
        assert all(other() is None for other in gathered), "a tensor before this one is still whole"
        result = gather(tensor)
        gathered.append(weakref.ref(result))
        return result

    DTensor.full_tensor = watched  # type: ignore[method-assign, assignment]
    weights = learner.weights()
    assert isinstance(weights, ModelWeights)
    assert len(gathered) == len(learner.model.state_dict())
    kept = weights._tensors
    assert bool(kept) == (rank == 0)
    assert {(tensor.dtype, tensor.device.type) for tensor in kept.values()} <= {(torch.bfloat16, "cpu")}
    if rank == 0:
        read = np.empty(weights.layout.data_bytes, dtype=np.uint8)
        for block in weights.layout.blocks:
            weights.read(block, read[block.start : block.end])
        save_file({"read": torch.from_numpy(read)}, target)
