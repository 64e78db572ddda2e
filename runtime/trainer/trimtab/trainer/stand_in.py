"""Lets a model compute with other weights than its own for a while.

Engines are sent the masters rounded to the published type. Where the trainer's passes do not round by themselves, they
compute with the rounded ones and the gradients go to the masters: both sides then score the same weights. With its
masters a trainer would score a policy that nobody samples from, because an update moves most weights by less than their
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.distributed.fsdp import FSDPModule

from trimtab.trainer.network.packed_network import PackedNetwork
from trimtab.trainer.network.spread import held_here


class StandIn:
    """Weights in the place of those of a network that this rank holds and that learn. All ranks make every call
    together.
    """

    def __init__(self, network: PackedNetwork) -> None:
        self._network = network
        self._aside: list[torch.Tensor] = []

    def copy(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """The weights as they are now, rounded as for publication."""
        return [tensor.to(dtype, copy=True) for tensor in self._held()]

    def round(self, dtype: torch.dtype) -> None:
        """For good, in the type they have."""
        for tensor in self._held():
            tensor.copy_(tensor.to(dtype))

    @contextmanager
    def rounded(self, dtype: torch.dtype) -> Iterator[None]:
        """Compute with the weights rounded. Whoever reads them for publication meanwhile rounds them to the same. The
        masters' place is kept, because every pass needs it.
        """
        held = self._held()
        self._aside = self._aside or [torch.empty_like(tensor) for tensor in held]
        _copy(held, to=self._aside)
        with self._until_restored(held, self._aside):
            self.round(dtype)
            yield

    @contextmanager
    def replaced(self, weights: list[torch.Tensor]) -> Iterator[None]:
        """Compute with weights that `copy` made. The masters are copied meanwhile: call it where there are no
        gradients, which take as much memory.
        """
        held = self._held()
        with self._until_restored(held, [tensor.clone() for tensor in held]):
            _copy(weights, to=held)
            yield

    @contextmanager
    def _until_restored(self, held: list[torch.Tensor], masters: list[torch.Tensor]) -> Iterator[None]:
        self._forget_gathered()
        try:
            yield
        finally:
            _copy(masters, to=held)
            self._forget_gathered()

    def _held(self) -> list[torch.Tensor]:
        return [held_here(parameter.detach()) for parameter in self._network.parameters() if parameter.requires_grad]

    def _forget_gathered(self) -> None:
        """What was put together from all ranks is kept between passes, and is of the weights before."""
        for module in self._network.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def as_published(
    stand_in: StandIn, *, published: torch.dtype, computing: torch.dtype
) -> Callable[[], AbstractContextManager[None]]:
    """What every pass of the policy is made in. A type that is computed in rounds the weights itself."""
    if published is computing:
        return nullcontext
    return lambda: stand_in.rounded(published)


@torch.no_grad()
def _copy(tensors: list[torch.Tensor], *, to: list[torch.Tensor]) -> None:
    torch._foreach_copy_(to, tensors)
