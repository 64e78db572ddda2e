"""Runs in SGLang's scheduler: writes a sparse update file into the live parameters of the model it serves.

SGLang keeps projections that read the same input in one parameter, and with tensor parallelism each rank keeps some
rows or some columns of it. Every rank reads the whole file and writes what it holds. Of a range of rows, which lie one
after another, an index into the flattened tensor only moves by a constant.

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
_PARTIAL_SUFFIX = ".partial"
_MODELS = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_FUSED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
"""By the checkpoint's name of a projection: the module that holds it, and which of its parts it is."""

_PADDED_FROM = {
    "num_attention_heads": "original_num_attention_heads",
    "num_key_value_heads": "original_total_num_kv_heads",
    "intermediate_size": "original_intermediate_size",
}
"""Sizes that SGLang on a CPU pads until its ranks share them evenly, and where it keeps the checkpoint's own."""

NamedTensors = Sequence[tuple[str, torch.Tensor]]


class Refused(ValueError):
    """The update cannot be written exactly; nothing was."""


@dataclass(frozen=True)
class Span:
    """What a rank holds of the rows or columns of a tensor: `count` of `whole`, from `start` on."""

    start: int
    count: int
    whole: int

    @classmethod
    def all(cls, size: int) -> Span:
        return cls(0, size, size)


@dataclass(frozen=True)
class Target:
    """Where a checkpoint's tensor lies: the part of it that this rank holds, in a parameter from row `at` on."""

    parameter: torch.Tensor
    rows: Span
    columns: Span
    at: int

    @property
    def count(self) -> int:
        return self.rows.whole * self.columns.whole

    def mapped(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Indices into the flattened parameter, and which of those given they stand for; None for all."""
        rows, columns = self.rows, self.columns
        if columns.count == columns.whole:
            width = columns.whole
            moved = indices + (self.at - rows.start) * width
            if rows.count == rows.whole:
                return moved, None
            held = (indices >= rows.start * width) & (indices < (rows.start + rows.count) * width)
            return moved[held], held
        row, column = indices // columns.whole, indices % columns.whole
        held = (row >= rows.start) & (row < rows.start + rows.count)
        held &= (column >= columns.start) & (column < columns.start + columns.count)
        return ((row - rows.start + self.at) * columns.count + column - columns.start)[held], held


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
    """Read and check the file that is named; `commit` can then not fail. The verdict of this rank is a file beside it,
    which is named too.
    """
    global _prepared  # noqa: PLW0603 - SGLang calls bare functions, and these two must share the update
    _prepared = None
    (path, _), (outcome, _) = named_tensors
    try:
        _prepared = _read(model, path)
    except Refused as refusal:
        _report(outcome, refused=str(refusal), base_version=None)
    else:
        _report(outcome, refused=None, base_version=_prepared.base_version)


def commit(_model: torch.nn.Module, named_tensors: NamedTensors) -> None:
    """Write what was prepared. To be asked for anything else is a fault of the caller that no weights survive."""
    global _prepared
    (path, _), _ = named_tensors
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
    places, held = target.mapped(indices.to(device))
    placed = values.to(device=device, dtype=target.parameter.dtype)
    return Write(target.parameter.detach().view(-1), places, placed if held is None else placed[held])


def _locator(model: torch.nn.Module) -> Callable[[str], Target]:
    """From the checkpoint's name of a tensor to its place in the model."""
    if type(model).__name__ not in _MODELS:
        raise Refused(f"{type(model).__name__} is served; known are {', '.join(_MODELS)}")
    modules = dict(model.named_modules(remove_duplicate=False))  # a tied output layer is the embedding itself
    config: Any = model.config
    for size, original in _PADDED_FROM.items():
        if hasattr(config, original) and getattr(config, original) != getattr(config, size):
            raise Refused(f"SGLang has padded {size}, which its ranks cannot share evenly")
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
        return _target(name, module, parameter, part=part, config=config)

    return locate


def _check_layout(name: str, module: torch.nn.Module, parameter: torch.Tensor) -> None:
    if getattr(module, "use_presharded_weights", False):
        raise Refused(f"{name} is loaded from files that are split already")
    if getattr(module, "use_intel_amx_backend", False):
        raise Refused(f"{name} is packed for AMX")
    if not parameter.dtype.is_floating_point or parameter.element_size() == 1:
        raise Refused(f"{name} is served as {parameter.dtype}; only unquantised weights are known")
    if not parameter.is_contiguous():
        raise Refused(f"{name} is not laid out row by row")


def _target(name: str, module: Any, parameter: torch.Tensor, *, part: int, config: Any) -> Target:
    """How SGLang's layers share out rows and columns."""
    size, rank = getattr(module, "tp_size", 1), getattr(module, "tp_rank", 0)
    height, width = parameter.shape[0], parameter.numel() // parameter.shape[0]
    columns = Span.all(width)
    if hasattr(module, "total_num_kv_heads"):
        spans = _heads(module)
    elif hasattr(module, "output_sizes"):
        spans = [_share(int(whole), rank=rank, size=size) for whole in module.output_sizes]
    elif hasattr(module, "shard_indices"):
        # Behind the vocabulary of the checkpoint SGLang pads.
        if module.org_vocab_size != config.vocab_size:
            raise Refused(f"{name} has a vocabulary of {module.org_vocab_size}, configured are {config.vocab_size}")
        first, end = module.shard_indices.org_vocab_start_index, module.shard_indices.org_vocab_end_index
        return Target(parameter, Span(first, end - first, int(config.vocab_size)), columns, 0)
    elif hasattr(module, "input_is_parallel"):
        if parameter.dim() > 1:
            columns = _share(int(module.input_size), rank=rank, size=size)
        spans = [Span.all(height)]
    elif size == 1:
        spans = [Span.all(height)]
    else:
        raise Refused(f"{name} is split over {size} ranks in a way that is not known")
    if (sum(span.count for span in spans), columns.count) != (height, width):
        parts = [span.count for span in spans]
        raise Refused(f"{name} lies in {height} rows of {width}, and its parts are {parts} of {columns.count}")
    return Target(parameter, spans[part], columns, sum(span.count for span in spans[:part]))


def _heads(module: Any) -> list[Span]:
    """Queries, keys and values. Where there are fewer heads of keys than ranks, several ranks have the same."""
    query, key, value = module.num_heads * module.head_size, module.head_size, module.v_head_size
    holder = module.kv_tp_rank // module.num_kv_head_replicas
    held, whole = module.num_kv_heads, module.total_num_kv_heads
    return [
        Span(module.tp_rank * query, query, module.total_num_heads * module.head_size),
        Span(holder * held * key, held * key, whole * key),
        Span(holder * held * value, held * value, whole * value),
    ]


def _share(whole: int, *, rank: int, size: int) -> Span:
    return Span(rank * (whole // size), whole // size, whole)


def _report(outcome: str, *, refused: str | None, base_version: str | None) -> None:
    """Whole or not at all: a reader must not see half of it. Without it the caller takes the update as refused."""
    partial = outcome + _PARTIAL_SUFFIX
    try:
        with open(partial, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"refused": refused, "base_version": base_version}, file)
        os.replace(partial, outcome)  # noqa: PTH105
    except OSError:
        return
