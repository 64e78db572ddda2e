"""What of a learner is in a checkpoint, and under which names: the model's own for its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

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
    return own | _random_names(random_states(), rank=rank)


def optimizer_steps_of(learner: Learner) -> dict[str, int]:
    states = {name: learner.optimizer.state.get(parameter) for name, parameter in learner.model.named_parameters()}
    return {name: int(state["step"].item()) for name, state in states.items() if state}


@torch.no_grad()
def tensors_for(learner: Learner, *, optimizer_steps: Mapping[str, int]) -> dict[str, torch.Tensor]:
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
    return _random_names({name: torch.empty_like(state) for name, state in random_states().items()}, rank=rank)


def restore_random(read: dict[str, torch.Tensor], *, rank: int, material: str) -> None:
    """Generators whose state was read go on with it; all others begin anew, the same each time."""
    generators = set(random_states())
    state = {name: read[key] for name, key in _random_keys(generators, rank=rank).items() if key in read}
    seed_generators(generators - set(state), material=material)
    restore_random_states(state)


def _moment_name(moment: str, parameter: str) -> str:
    return f"optimizer.{moment}.{parameter}"


def _random_keys(generators: set[str], *, rank: int) -> dict[str, str]:
    return {name: f"random.{rank}.{name}" for name in generators}


def _random_names(state: dict[str, torch.Tensor], *, rank: int) -> dict[str, torch.Tensor]:
    keys = _random_keys(set(state), rank=rank)
    return {keys[name]: tensor for name, tensor in state.items()}


def random_states() -> dict[str, torch.Tensor]:
    """The state of every generator that a rank has, by name. Training draws from torch alone; what else is random, such
    as the delay before a repeated request, must not repeat itself after a restart.
    """
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_states(state: dict[str, torch.Tensor]) -> None:
    """What `random_states` gave, of some generators or of all."""
    if "cpu" in state:
        torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def seed_generators(generators: set[str], *, material: str) -> None:
    """Begin anew, and the same wherever the material is."""
    number = int.from_bytes(hashlib.sha256(material.encode()).digest()[:8], "little", signed=True)
    if "cpu" in generators:
        torch.default_generator.manual_seed(number)
    if "cuda" in generators:
        torch.cuda.manual_seed(number)
