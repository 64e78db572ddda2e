"""Adapters of low rank as weights: a version of them says in its header what it is and to which model it belongs.

Names and configuration are those of the PEFT library, which engines and tools read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from trimtab.weights.layout import StateLayout

PREFIX = "base_model.model."
"""Before the model's own name of what an adapter belongs to."""
DOWN, UP = "lora_A", "lora_B"
WEIGHTS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
_KEY = "trimtab.adapter"
_MAX_NAME = 1024


class InvalidAdapter(ValueError):
    """Weights that say they are adapters, and are none that we know."""


class Adapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a version of adapters is. To the output of each target alpha/rank·B·A·input is added."""

    rank: Annotated[int, Meta(ge=1)]
    alpha: Annotated[float, Meta(gt=0)]
    targets: Annotated[tuple[str, ...], Meta(min_length=1)]
    base: Annotated[str, Meta(max_length=_MAX_NAME)]
    """The model's folder, as the manifest has it."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def metadata(self) -> dict[str, str]:
        """For the header, and so under the signature of the version."""
        return {_KEY: msgspec.json.encode(self).decode(), "format": "pt"}

    def config(self) -> str:
        """The content of PEFT's adapter_config.json."""
        return json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "base_model_name_or_path": self.base,
                "r": self.rank,
                "lora_alpha": self.alpha,
                "target_modules": list(self.targets),
                "lora_dropout": 0.0,
                "bias": "none",
                "fan_in_fan_out": False,
                "inference_mode": True,
                "modules_to_save": None,
            },
            indent=2,
        )


def said_in(metadata: Mapping[str, str]) -> Adapter | None:
    """What a header's metadata says; None for the weights of a whole model. Raises InvalidAdapter."""
    said = metadata.get(_KEY)
    if said is None:
        return None
    try:
        return msgspec.json.decode(said, type=Adapter)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidAdapter(f"the header's {_KEY} cannot be read: {error}") from None


def write_peft_folder(file: Path, folder: Path) -> Adapter:
    """A folder as PEFT and engines load it, from a safetensors file of adapters. Raises InvalidAdapter."""
    with file.open("rb") as opened:
        adapter = said_in(StateLayout.read(opened).metadata)
    if adapter is None:
        raise InvalidAdapter(f"{file} has the weights of a whole model, not of adapters")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS_FILE).write_bytes(file.read_bytes())
    (folder / CONFIG_FILE).write_text(adapter.config())
    return adapter


def target_of(name: str) -> tuple[str, str] | None:
    """The model's name of the weight that a tensor of this name adapts, and which of the two matrices it is."""
    for matrix in (DOWN, UP):
        suffix = f".{matrix}.weight"
        if name.startswith(PREFIX) and name.endswith(suffix):
            return f"{name[len(PREFIX) : -len(suffix)]}.weight", matrix
    return None
