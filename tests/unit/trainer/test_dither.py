"""Masters begin at random places of what is rounded to the published value, and nowhere else."""

from __future__ import annotations

import torch
from torch import nn

from trimtab.trainer.dither import dither


class Network(nn.Module):
    """As much of a policy network as is looked at."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.causal_lm = nn.Module()
        self.causal_lm.weight = nn.Parameter(weights.clone())

    @property
    def weights(self) -> torch.Tensor:
        return self.causal_lm.get_parameter("weight").detach()


def dithered(weights: torch.Tensor, *, published: torch.dtype = torch.bfloat16) -> torch.Tensor:
    network = Network(weights)
    dither(network, published=published)  # type: ignore[arg-type]
    return network.weights


def test_all_places_within_the_rounding_are_as_likely() -> None:
    torch.manual_seed(0)
    weights = torch.randn(1 << 16).to(torch.bfloat16).float()
    moved = dithered(weights)
    assert torch.equal(moved.to(torch.bfloat16).float(), weights)
    offsets = (moved.view(torch.int32) - weights.view(torch.int32)).double() / (1 << 15)
    assert abs(float(offsets.mean())) < 0.01
    edges = torch.linspace(-1, 1, 9, dtype=torch.float64)
    shares = torch.histc(offsets, 8, min=float(edges[0]), max=float(edges[-1])) / len(offsets)
    assert (shares - 1 / 8).abs().max() < 0.01


def test_it_is_the_same_every_time_and_not_the_same_for_neighbours() -> None:
    weights = torch.ones(4096)
    assert torch.equal(dithered(weights), dithered(weights))
    assert len(dithered(weights).unique()) > 3000


def test_what_is_exact_in_a_wider_type_or_nothing_or_no_number_stays() -> None:
    values = torch.tensor([0.1, 1 / 3, 0.0, -0.0, float("inf"), -float("inf")])
    assert torch.equal(dithered(values), values)
    weights = torch.randn(64).to(torch.bfloat16).float()
    assert torch.equal(dithered(weights, published=torch.float32), weights)
