"""What of a learner is in a checkpoint, and under which names: the model's own for its weights."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from trimtab.trainer.checkpoints import random_state
from trimtab.trainer.learner import Learner
from trimtab.trainer.model_weights import unique_tensors

_MOMENTS = ("exp_avg", "exp_avg_sq")


def tensors_of(learner: Learner, *, rank: int) -> dict[str, torch.Tensor]:
    """This rank's part of the state as it is now, not copied. What is not spread over the ranks is rank 0's."""
    tensors = dict(unique_tensors(learner.model))
    for name, parameter in learner.model.named_parameters():
        state = learner.optimizer.state.get(parameter, {})
        tensors |= {_moment_name(moment, name): state[moment] for moment in _MOMENTS if moment in state}
    own = {name: tensor for name, tensor in tensors.items() if rank == 0 or isinstance(tensor, DTensor)}
    return own | _random_names(random_state.captured(), rank=rank)


def optimizer_steps_of(learner: Learner) -> dict[str, int]:
    states = {name: learner.optimizer.state.get(parameter) for name, parameter in learner.model.named_parameters()}
    return {name: int(state["step"].item()) for name, state in states.items() if state}


@torch.no_grad()
def tensors_for(learner: Learner, *, optimizer_steps: dict[str, int]) -> dict[str, torch.Tensor]:
    """Where model and moments of a checkpoint are to be read into; the moments are made for it."""
    tensors = dict(unique_tensors(learner.model))
    for name, parameter in learner.model.named_parameters():
        if name not in optimizer_steps:
            continue
        moments = {moment: torch.zeros_like(parameter) for moment in _MOMENTS}
        # On the parameter's device, where a fused optimiser looks for it.
        step = torch.tensor(float(optimizer_steps[name]), device=parameter.device)
        learner.optimizer.state[parameter] = {"step": step, **moments}
        tensors |= {_moment_name(moment, name): tensor for moment, tensor in moments.items()}
    return tensors


def random_tensors_for(*, rank: int) -> dict[str, torch.Tensor]:
    """Where the random state of a rank is to be read into."""
    return _random_names({name: torch.empty_like(state) for name, state in random_state.captured().items()}, rank=rank)


def restore_random(read: dict[str, torch.Tensor], *, rank: int, material: str) -> None:
    """Generators whose state was read go on with it; all others begin anew, the same each time."""
    generators = set(random_state.captured())
    state = {name: read[key] for name, key in _random_keys(generators, rank=rank).items() if key in read}
    random_state.seed(generators - set(state), material=material)
    random_state.restore(state)


def _moment_name(moment: str, parameter: str) -> str:
    return f"optimizer.{moment}.{parameter}"


def _random_keys(generators: set[str], *, rank: int) -> dict[str, str]:
    return {name: f"random.{rank}.{name}" for name in generators}


def _random_names(state: dict[str, torch.Tensor], *, rank: int) -> dict[str, torch.Tensor]:
    keys = _random_keys(set(state), rank=rank)
    return {keys[name]: tensor for name, tensor in state.items()}
