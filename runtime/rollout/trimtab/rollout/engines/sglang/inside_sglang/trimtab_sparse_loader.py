"""Runs in SGLang's scheduler: writes a sparse update file into the live parameters of the model it serves.

SGLang keeps projections that read the same input in one parameter. A checkpoint's tensor is then a range of that
parameter's rows, and as rows lie one after another, an index into the flattened tensor only moves by a constant.

An exception in a loader ends the scheduler, so a refusal is written to a file and nothing else happens. This module
stands alone: SGLang's interpreter has torch and safetensors, and none of our packages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

_FORMAT = "trimtab-sparse-1"
_INDICES, _VALUES = "#indices", "#values"
_OUTCOME_SUFFIX, _PARTIAL_SUFFIX = ".outcome", ".partial"
_MODELS = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_FUSED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
"""By the checkpoint's name of a projection: the module that holds it, and which of its parts it is."""

NamedTensors = Sequence[tuple[str, torch.Tensor]]


class Refused(ValueError):
    """The update cannot be written exactly; nothing was."""


@dataclass(frozen=True)
class Target:
    """Where a checkpoint's tensor lies: `count` elements of a flattened parameter from `start` on."""

    parameter: torch.Tensor
    start: int
    count: int


@dataclass(frozen=True)
class Write:
    """Elements of one parameter and what they become, on its device and in its type."""

    flat: torch.Tensor
    """A view of the live parameter."""
    indices: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class Prepared:
    path: str
    base_version: str
    writes: tuple[Write, ...]


_prepared: Prepared | None = None
"""What `prepare` read last, for the `commit` that follows it."""


def prepare(model: torch.nn.Module, named_tensors: NamedTensors) -> None:
    """Read and check the file that is named; `commit` can then not fail. The verdict is a file beside it."""
    global _prepared  # noqa: PLW0603 - SGLang calls bare functions, and these two must share the update
    _prepared = None
    ((path, _),) = named_tensors
    try:
        _prepared = _read(model, path)
    except Refused as refusal:
        _report(path, refused=str(refusal), base_version=None)
    else:
        _report(path, refused=None, base_version=_prepared.base_version)


def commit(_model: torch.nn.Module, named_tensors: NamedTensors) -> None:
    """Write what was prepared. To be asked for anything else is a fault of the caller that no weights survive."""
    global _prepared
    ((path, _),) = named_tensors
    prepared, _prepared = _prepared, None
    if prepared is None or prepared.path != path:
        raise RuntimeError(f"{path} was not prepared; refusing to name weights that did not change")
    with torch.no_grad():
        for write in prepared.writes:
            write.flat.index_copy_(0, write.indices, write.values)


def _read(model: torch.nn.Module, path: str) -> Prepared:
    locate = _locator(model)
    writes: list[Write] = []
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT or "base_version" not in metadata:
                raise Refused(f"{os.path.basename(path)} is not a sparse update of format {_FORMAT}")  # noqa: PTH119
            names = set(file.keys())
            for name in sorted(names):
                tensor, _, part = name.rpartition("#")
                if {tensor + _INDICES, tensor + _VALUES} - names:
                    raise Refused(f"the file has {part} of {tensor} alone")
                if name.endswith(_INDICES):
                    writes.append(
                        _write(tensor, locate(tensor), file.get_tensor(name), file.get_tensor(tensor + _VALUES))
                    )
    except (SafetensorError, OSError) as error:
        raise Refused(f"the file cannot be read: {error}") from None
    return Prepared(path, metadata["base_version"], tuple(writes))


def _write(name: str, target: Target, indices: torch.Tensor, values: torch.Tensor) -> Write:
    if indices.dtype != torch.int64 or indices.dim() != 1 or indices.shape != values.shape:
        raise Refused(f"{name} needs as many 64-bit indices as values, in one dimension")
    if not values.dtype.is_floating_point:
        raise Refused(f"{name} has values of type {values.dtype}")
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < target.count:
        raise Refused(f"the update of {name} points outside its {target.count} elements")
    device = target.parameter.device
    return Write(
        target.parameter.detach().view(-1),
        (indices + target.start).to(device),
        values.to(device=device, dtype=target.parameter.dtype),
    )


def _locator(model: torch.nn.Module) -> Callable[[str], Target]:
    """From the checkpoint's name of a tensor to its place in the model."""
    if type(model).__name__ not in _MODELS:
        raise Refused(f"{type(model).__name__} is served; known are {', '.join(_MODELS)}")
    modules = dict(model.named_modules(remove_duplicate=False))  # a tied output layer is the embedding itself
    config: Any = model.config
    if config.tie_word_embeddings and modules.get("lm_head") is not modules.get("model.embed_tokens"):
        raise Refused("the served model keeps two copies of an embedding that is its output layer too")

    def locate(name: str) -> Target:
        owner, _, kind = name.rpartition(".")
        above, _, last = owner.rpartition(".")
        fused, part = _FUSED.get(last, (last, 0))
        module = modules.get(f"{above}.{fused}" if above else fused)
        parameter = getattr(module, kind, None)
        if module is None or not isinstance(parameter, torch.nn.Parameter):
            raise Refused(f"the served model has no {name}")
        if name == "lm_head.weight" and config.tie_word_embeddings:
            # SGLang does not load it either: the embedding is what counts.
            raise Refused("lm_head.weight is the embedding in the served model")
        _check_layout(name, module, parameter)
        rows = _rows(name, module, parameter, config)
        width = parameter.numel() // parameter.shape[0]
        return Target(parameter, sum(rows[:part]) * width, rows[part] * width)

    return locate


def _check_layout(name: str, module: torch.nn.Module, parameter: torch.Tensor) -> None:
    if getattr(module, "tp_size", 1) != 1:
        raise Refused(f"{name} is split over {module.tp_size} ranks; only tensor-parallel size 1 is known")
    if getattr(module, "use_intel_amx_backend", False):
        raise Refused(f"{name} is packed for AMX")
    if not parameter.dtype.is_floating_point or parameter.element_size() == 1:
        raise Refused(f"{name} is served as {parameter.dtype}; only unquantised weights are known")
    if not parameter.is_contiguous():
        raise Refused(f"{name} is not laid out row by row")


def _rows(name: str, module: torch.nn.Module, parameter: torch.Tensor, config: Any) -> list[int]:
    """How many rows each part of the parameter has."""
    output_sizes = getattr(module, "output_sizes", None)
    if output_sizes is not None:
        if sum(output_sizes) != parameter.shape[0]:
            raise Refused(f"{name} lies in {parameter.shape[0]} rows, which are not those of its parts {output_sizes}")
        return [int(size) for size in output_sizes]
    if hasattr(module, "org_vocab_size"):
        # Behind the vocabulary of the checkpoint SGLang pads.
        if module.org_vocab_size != config.vocab_size:
            raise Refused(f"{name} has a vocabulary of {module.org_vocab_size}, configured are {config.vocab_size}")
        return [int(config.vocab_size)]
    return [int(parameter.shape[0])]


def _report(path: str, *, refused: str | None, base_version: str | None) -> None:
    """Whole or not at all: a reader must not see half of it. Without it the caller takes the update as refused."""
    partial = path + _OUTCOME_SUFFIX + _PARTIAL_SUFFIX
    try:
        with open(partial, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"refused": refused, "base_version": base_version}, file)
        os.replace(partial, path + _OUTCOME_SUFFIX)  # noqa: PTH105
    except OSError:
        return
