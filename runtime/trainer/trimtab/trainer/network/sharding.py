"""Spreads a network over the ranks with FSDP2: each holds its share of the float32 master weights, and layers are put
together one at a time while they compute.
"""

from __future__ import annotations

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trimtab.trainer import ranks
from trimtab.trainer.network.policy_network import PolicyNetwork


def shard(network: PolicyNetwork, *, compute_dtype: torch.dtype) -> None:
    """Computes in `compute_dtype`, averages gradients over the ranks in float32. All ranks call it together."""
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    # Alone, a rank has nothing to gain from taking a layer apart again between the two passes.
    reshard = ranks.world_size() > 1
    for layer in network.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=reshard)
    # The root holds embeddings, the last norm and the head, which the backward pass of the chunks needs again.
    fully_shard(network, mp_policy=policy, reshard_after_forward=False)


def held_here(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor; all of it where it is not spread."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor put together from all ranks, which call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
