"""What the built-in engine must know of a checkpoint: sizes and variants of the Llama, Qwen2 and Qwen3 families.

A checkpoint that would be computed wrongly is refused by name when the engine starts, not found out by its rewards.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_FAMILIES = ("llama", "qwen2", "qwen3")
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


def read_architecture(folder: Path) -> Architecture:
    """From `config.json` and, where there is one, `generation_config.json`."""
    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    _refuse_unknown(config)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    frequencies, scale = _rotary(config, head_size)
    biased = bool(getattr(config, "attention_bias", False))
    return Architecture(
        family=config.model_type,
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_size=head_size,
        norm_epsilon=config.rms_norm_eps,
        qkv_bias=biased or config.model_type == "qwen2",
        output_bias=biased and config.model_type != "qwen2",
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=config.model_type == "qwen3",
        tied=bool(config.tie_word_embeddings),
        max_length=config.max_position_embeddings,
        rotary_frequencies=frequencies,
        rotary_scale=scale,
        eos_ids=_ids(config.eos_token_id) | _generation_eos(folder),
    )


def _refuse_unknown(config: Any) -> None:
    if config.model_type not in _FAMILIES:
        raise UnsupportedModelError(f"model_type {config.model_type!r} is not one of {', '.join(_FAMILIES)}")
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModelError("the checkpoint is quantised; serve one in bf16, fp16 or fp32")
    if config.hidden_act != "silu":
        raise UnsupportedModelError(f"hidden_act {config.hidden_act!r} is not silu")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise UnsupportedModelError("layers with sliding-window attention; set use_sliding_window to false")


def _rotary(config: Any, head_size: int) -> tuple[tuple[float, ...], float]:
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
        return tuple((1.0 / (config.rope_parameters["rope_theta"] ** exponents)).tolist()), 1.0
    if kind not in _SCALED_ROTARY:
        raise UnsupportedModelError(f"rope_type {kind!r} is not one of default, {', '.join(_SCALED_ROTARY)}")
    frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return tuple(frequencies.tolist()), float(scale)


def _generation_eos(folder: Path) -> frozenset[int]:
    if not (folder / "generation_config.json").is_file():
        return frozenset()
    return _ids(GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id)


def _ids(eos: int | list[int] | None) -> frozenset[int]:
    return frozenset([eos] if isinstance(eos, int) else eos or ())
