"""What the built-in engine must know of a checkpoint: sizes and variants of the Llama, Qwen2 and Qwen3 families.

A checkpoint that would be computed wrongly is refused by name when the engine starts, not found out by its rewards.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from trimtab.rollout.engines.builtin.families import FAMILIES

_SCALED_ROTARY = ("linear", "llama3", "yarn")
"""Those whose frequencies do not depend on how long a sequence has become."""


class UnsupportedModelError(ValueError):
    """The checkpoint is of a kind that the built-in engine does not compute; SGLang or vLLM may."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One decoder-only transformer."""

    family: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    norm_epsilon: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool
    max_length: int
    rotary_frequencies: tuple[float, ...]
    rotary_scale: float
    """Factor on sine and cosine: YaRN's attention temperature, else 1."""
    eos_ids: frozenset[int]
    value_head: bool = False
    """It says one number of each token, in place of probabilities of the next."""


class _ModelConfig(BaseModel):
    """The fields of `config.json` that matter here, with what they mean where they are left out.

    Not read by transformers, whose classes take longer to import than torch: an engine would start in twice the time.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    eos_token_id: int | list[int] | None = None
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    """How rotary embeddings were described before `rope_parameters`."""
    rope_parameters: dict[str, Any] | None = None
    quantization_config: dict[str, Any] | None = None
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None

    @property
    def rotary(self) -> dict[str, Any]:
        return {"rope_theta": self.rope_theta, **(self.rope_scaling or {}), **(self.rope_parameters or {})}

    @property
    def rotary_kind(self) -> str:
        return str(self.rotary.get("rope_type", self.rotary.get("type", "default")))

    @property
    def slides(self) -> bool:
        """Whether a layer attends to a window only."""
        if self.layer_types is not None:
            return "sliding_attention" in self.layer_types
        windowed = self.use_sliding_window and self.sliding_window is not None
        return windowed and self.max_window_layers < self.num_hidden_layers

    @property
    def head_size(self) -> int:
        if self.head_dim is not None:
            return self.head_dim
        return 128 if self.model_type == "qwen3" else self.hidden_size // self.num_attention_heads


def read_architecture(folder: Path, *, value_head: bool = False) -> Architecture:
    """From `config.json` and, where there is one, `generation_config.json`."""
    config = _read_config(folder / "config.json")
    frequencies, scale = _rotary(config, folder)
    qwen2 = config.model_type == "qwen2"
    return Architecture(
        family=config.model_type,
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_size=config.head_size,
        norm_epsilon=config.rms_norm_eps,
        qkv_bias=config.attention_bias or qwen2,
        output_bias=config.attention_bias and not qwen2,
        mlp_bias=config.mlp_bias,
        qk_norm=config.model_type == "qwen3",
        tied=config.tie_word_embeddings,
        max_length=config.max_position_embeddings,
        rotary_frequencies=frequencies,
        rotary_scale=scale,
        eos_ids=_ids(config.eos_token_id) | _generation_eos(folder / "generation_config.json"),
        value_head=value_head,
    )


def _read_config(path: Path) -> _ModelConfig:
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UnsupportedModelError(f"{path} does not exist, so the folder holds no model") from None
    except json.JSONDecodeError as error:
        raise UnsupportedModelError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    family = fields.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedModelError(f"{path}: model_type {family!r} is not one of {', '.join(FAMILIES)}")
    if family == "llama":
        fields.setdefault("eos_token_id", 2)
    try:
        config = _ModelConfig.model_validate(fields)
    except ValidationError as error:
        wrong = "; ".join(f"{fault['loc'][0]}: {fault['msg']}" for fault in error.errors())
        raise UnsupportedModelError(f"config.json: {wrong}") from None
    if config.quantization_config is not None:
        raise UnsupportedModelError("the checkpoint is quantised; serve one in bf16, fp16 or fp32")
    if config.hidden_act != "silu":
        raise UnsupportedModelError(f"hidden_act {config.hidden_act!r} is not silu")
    if config.slides:
        raise UnsupportedModelError("layers with sliding-window attention; set use_sliding_window to false")
    return config


def _rotary(config: _ModelConfig, folder: Path) -> tuple[tuple[float, ...], float]:
    """Frequencies, and the factor on sine and cosine."""
    kind = config.rotary_kind
    if kind == "default":
        exponents = torch.arange(0, config.head_size, 2, dtype=torch.int64).float() / config.head_size
        return tuple((1.0 / (config.rotary["rope_theta"] ** exponents)).tolist()), 1.0
    if kind not in _SCALED_ROTARY:
        raise UnsupportedModelError(f"rope_type {kind!r} is not one of default, {', '.join(_SCALED_ROTARY)}")
    # Only those who need these formulas wait for the import.
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    pretrained = AutoConfig.from_pretrained(folder, local_files_only=True)
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](pretrained, torch.device("cpu"))
    return tuple(frequencies.tolist()), float(scale)


def _generation_eos(path: Path) -> frozenset[int]:
    return _ids(json.loads(path.read_bytes()).get("eos_token_id")) if path.is_file() else frozenset()


def _ids(eos: int | list[int] | None) -> frozenset[int]:
    return frozenset([eos] if isinstance(eos, int) else eos or ())
