"""The weights that are served, in the layout the forward pass reads, with a view of each under its checkpoint name.

Projections that read the same input lie side by side in one matrix of (inputs, outputs): one product instead of three,
and for a few rows on a CPU twice as fast as the (outputs, inputs) of the file. Updates write through the views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from trimtab.rollout.engines.builtin.architecture import Architecture
from trimtab.rollout.engines.builtin.low_rank import AdapterShape, LowRank
from trimtab.rollout.engines.builtin.sparse_update import PlacedTensor, SparseTensor, WeightMismatchError

_LM_HEAD = "lm_head.weight"
_VALUE_HEAD = "score.weight"
_DERIVED = "rotary_emb.inv_freq"
"""Old checkpoints store it; it follows from the configuration."""


@dataclass(frozen=True)
class Projection:
    """One or more linear layers on the same input."""

    matrix: torch.Tensor
    """(inputs, outputs)"""
    bias: torch.Tensor | None
    adapters: LowRank | None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        outputs = torch.mm(rows, self.matrix) if self.bias is None else torch.addmm(self.bias, rows, self.matrix)
        return outputs if self.adapters is None else self.adapters.added(outputs, rows)


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """One decoder layer."""

    input_norm: torch.Tensor
    qkv: Projection
    qk_norms: tuple[torch.Tensor, torch.Tensor] | None
    output: Projection
    mlp_norm: torch.Tensor
    gate_up: Projection
    down: Projection


class ServedWeights:
    """All weights of one version. Filled before it is served; after that only the model's thread writes to it."""

    def __init__(
        self,
        architecture: Architecture,
        *,
        device: torch.device,
        dtype: torch.dtype,
        adapters: AdapterShape | None = None,
    ) -> None:
        self._architecture = architecture
        self._device = device
        self._dtype = dtype
        self._adapters = adapters
        self.named: dict[str, torch.Tensor] = {}
        """Views with the names and shapes of the checkpoint."""
        self.adapted: dict[str, torch.Tensor] = {}
        """The same of the adapters, which are zero in the model's own weights."""
        self.embedding = self._vector("model.embed_tokens", architecture.vocabulary, architecture.hidden)
        self.layers = [self._layer(f"model.layers.{number}") for number in range(architecture.layers)]
        self.norm = self._vector("model.norm", architecture.hidden)
        if architecture.value_head:
            self.head = self._vector("score", 1, architecture.hidden)
        elif architecture.tied:
            self.head = self.named["lm_head.weight"] = self.embedding
        else:
            self.head = self._vector("lm_head", architecture.vocabulary, architecture.hidden)

    @classmethod
    def read(
        cls,
        folder: Path,
        architecture: Architecture,
        *,
        device: torch.device,
        dtype: torch.dtype,
        adapters: AdapterShape | None = None,
        rounded_to: torch.dtype | None = None,
    ) -> ServedWeights:
        """A checkpoint's weights, once all its names and shapes are found to fit; `rounded_to` what a trainer would
        publish them in.
        """
        expected = cls(architecture, device=torch.device("meta"), dtype=dtype).named
        if architecture.value_head:
            # A critic begins with a language model: its head is of no use, and expects nothing at first.
            _check_fits(folder, expected, absent={_VALUE_HEAD}, unused={_LM_HEAD})
        else:
            tied = {_LM_HEAD, "model.embed_tokens.weight"} if architecture.tied else set()
            _check_fits(folder, expected, tied=tied)
        weights = cls(architecture, device=device, dtype=dtype, adapters=adapters)
        if architecture.value_head:
            weights.head.zero_()
        for name, _, content in _stored(folder, with_content=True):
            if name in weights.named:
                weights.named[name].copy_(content if rounded_to is None else content.to(rounded_to))
        return weights

    def staged_adapters(self, folder: Path) -> dict[str, torch.Tensor]:
        """Adapters for these weights from a folder, on their device. Raises WeightMismatchError if they do not fit."""
        _check_fits(folder, self.adapted)
        return {name: content.to(self._device, self._dtype) for name, _, content in _stored(folder, with_content=True)}

    def adapt(self, adapters: Mapping[str, torch.Tensor]) -> None:
        """Put what was staged into the live tensors."""
        for name, tensor in adapters.items():
            self.adapted[name].copy_(tensor)

    def placed(self, change: SparseTensor) -> PlacedTensor:
        """On the device. Raises WeightMismatchError if it does not fit, which `write` must not find out halfway."""
        served = self.adapted.get(change.name, self.named.get(change.name))
        if served is None:
            raise WeightMismatchError(f"the update changes {change.name}, which the served model does not have")
        elements = served.numel()
        if len(change.indices) and not 0 <= int(change.indices.min()) <= int(change.indices.max()) < elements:
            raise WeightMismatchError(f"the update of {change.name} points outside its {elements} elements")
        indices = change.indices.to(self._device, torch.int64)
        return PlacedTensor(
            name=change.name,
            where=(indices,) if served.dim() == 1 else (indices // served.shape[1], indices % served.shape[1]),
            values=change.values.to(self._device, self._dtype),
        )

    def write(self, changes: Sequence[PlacedTensor]) -> None:
        """Put new values into the live tensors."""
        for change in changes:
            served = self.adapted.get(change.name, self.named.get(change.name))
            assert served is not None, "what was placed is served"
            served.index_put_(change.where, change.values)

    @torch.inference_mode()
    def take(self, other: ServedWeights) -> None:
        """Take over all values; the tensors stay where they are."""
        for name, tensor in other.named.items():
            self.named[name].copy_(tensor)
        self.adapt(other.adapted)

    def _layer(self, prefix: str) -> LayerWeights:
        shape = self._architecture
        queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        norms = (f"{attention}.q_norm", f"{attention}.k_norm")
        return LayerWeights(
            input_norm=self._vector(f"{prefix}.input_layernorm", shape.hidden),
            qkv=self._projection(
                {f"{attention}.q_proj": queries, f"{attention}.k_proj": keys, f"{attention}.v_proj": keys},
                inputs=shape.hidden,
                biased=shape.qkv_bias,
            ),
            qk_norms=(self._vector(norms[0], shape.head_size), self._vector(norms[1], shape.head_size))
            if shape.qk_norm
            else None,
            output=self._projection({f"{attention}.o_proj": shape.hidden}, inputs=queries, biased=shape.output_bias),
            mlp_norm=self._vector(f"{prefix}.post_attention_layernorm", shape.hidden),
            gate_up=self._projection(
                {f"{mlp}.gate_proj": shape.intermediate, f"{mlp}.up_proj": shape.intermediate},
                inputs=shape.hidden,
                biased=shape.mlp_bias,
            ),
            down=self._projection({f"{mlp}.down_proj": shape.hidden}, inputs=shape.intermediate, biased=shape.mlp_bias),
        )

    def _vector(self, name: str, *shape: int) -> torch.Tensor:
        tensor = torch.empty(shape, device=self._device, dtype=self._dtype)
        self.named[f"{name}.weight"] = tensor
        return tensor

    def _projection(self, outputs: dict[str, int], *, inputs: int, biased: bool) -> Projection:
        width = sum(outputs.values())
        matrix = torch.empty(inputs, width, device=self._device, dtype=self._dtype)
        bias = torch.empty(width, device=self._device, dtype=self._dtype) if biased else None
        start = 0
        for name, count in outputs.items():
            self.named[f"{name}.weight"] = matrix[:, start : start + count].t()
            if bias is not None:
                self.named[f"{name}.bias"] = bias[start : start + count]
            start += count
        adapters = None
        if self._adapters is not None:
            adapters = self._adapters.beside(outputs, inputs=inputs, like=matrix, named=self.adapted)
        return Projection(matrix, bias, adapters)


def _check_fits(
    folder: Path,
    expected: Mapping[str, torch.Tensor],
    *,
    tied: Set[str] = frozenset(),
    absent: Set[str] = frozenset(),
    unused: Set[str] = frozenset(),
) -> None:
    """All names and shapes. Of `tied` ones one is enough, `absent` ones may be so, and `unused` ones may be there."""
    seen = set(absent)
    for name, shape, _ in _stored(folder, with_content=False):
        if name in unused and name not in expected:
            continue
        if name not in expected:
            raise WeightMismatchError(f"{folder} holds {name}, which the served model does not have")
        if shape != tuple(expected[name].shape):
            raise WeightMismatchError(
                f"{name} in {folder} has shape {list(shape)}, served is {list(expected[name].shape)}"
            )
        seen.add(name)
    if seen & tied:
        seen |= tied
    missing = [name for name in expected if name not in seen]
    if missing:
        raise WeightMismatchError(f"{folder} lacks {len(missing)} tensors of the served model, first {missing[0]}")


def _stored(folder: Path, *, with_content: bool) -> Iterator[tuple[str, tuple[int, ...], torch.Tensor]]:
    """Name, shape and, if wanted, content of every tensor in the folder's files."""
    empty = torch.empty(0)
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is not a mapping
                    if not name.endswith(_DERIVED):
                        shape = tuple(opened.get_slice(name).get_shape())
                        yield name, shape, opened.get_tensor(name) if with_content else empty
        except SafetensorError as error:
            raise WeightMismatchError(f"{file.name} is not a whole safetensors file: {error}") from None
