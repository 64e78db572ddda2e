"""A model without its weights: made on the meta device from its configuration, spread while it takes no memory, and
filled from its files afterwards, so that no rank ever holds more than its own share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from trimtab.trainer.network.model_files import ModelFiles, UnsupportedModel
from trimtab.trainer.network.spread import held_here, held_rows

_META = torch.device("meta")
VALUE_HEAD = "score.weight"


@dataclass(frozen=True)
class BlankModel:
    """`computed` are the buffers that follow from the configuration, such as rotary frequencies, and are in no file;
    `stored` the names of what is in files, and not of adapters that came later.
    """

    causal_lm: PreTrainedModel
    computed: dict[str, torch.Tensor]
    stored: frozenset[str]

    @classmethod
    def of(cls, folder: Path, *, value_head: bool = False) -> BlankModel:
        """In float32: master weights are never kept in less. With a value head in the place of the one for tokens where
        that is asked for. Raises UnsupportedModel.
        """
        causal_lm = _on_meta(folder, value_head=value_head)
        computed: dict[str, torch.Tensor] = {}
        for name, module, attribute in _computed_buffers(causal_lm):
            value = torch.empty_like(getattr(module, attribute), device="cpu")
            setattr(module, attribute, value)
            computed[name] = value
        # What is on the meta device stays as it is; so only the buffers get values.
        causal_lm.initialize_weights()  # type: ignore[no-untyped-call]
        values = {name: value.clone() for name, value in computed.items()}
        return cls(causal_lm, values, stored=frozenset(causal_lm.state_dict()))

    @torch.no_grad()
    def fill(self, files: ModelFiles, *, within: nn.Module, device: torch.device) -> None:
        """Give it memory, as spread over the ranks as it is by now, and read into it what this rank holds. `within` is
        the module that it was spread with.
        """
        model = self.causal_lm
        within.to_empty(device=device)
        # Parameters that were not spread are new ones now, each of two that are tied too.
        model.tie_weights()
        for name, value in self.computed.items():
            model.get_buffer(name).copy_(value)
        for names, tensor in _by_tensor(model):
            if self.stored.isdisjoint(names):
                continue
            if VALUE_HEAD in names and not files.have(VALUE_HEAD):
                held_here(tensor).zero_()
                continue
            rows = held_rows(tensor) if tensor.shape else None
            files.read(_stored_names(model, names), held_here(tensor), shape=tensor.shape, rows=rows)


def _on_meta(folder: Path, *, value_head: bool) -> PreTrainedModel:
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        _check_not_quantised(config, folder)
        kind = AutoModelForSequenceClassification if value_head else AutoModelForCausalLM
        if value_head:
            config.num_labels = 1
        with _META:
            model: PreTrainedModel = kind.from_config(  # type: ignore[no-untyped-call]
                config, dtype=torch.float32, attn_implementation="sdpa"
            )
    except OSError as error:
        # With a number it is the disk's or the network's error, which passes; without, transformers' own: a file that
        # it needs is not in the folder.
        if error.errno is not None:
            raise
        raise UnsupportedModel(f"policies[].model.uri: {error}") from error
    except UnsupportedModel:
        raise
    except ValueError as error:
        raise UnsupportedModel(f"policies[].model.uri: {folder} cannot be loaded: {error}") from error
    return model


def _check_not_quantised(config: PreTrainedConfig, folder: Path) -> None:
    if getattr(config, "quantization_config", None):
        raise UnsupportedModel(
            f"policies[].model.uri: {folder} holds quantised weights, which cannot be trained; take the model in"
            " bfloat16 or float32"
        )


def _computed_buffers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    for path, module in model.named_modules():
        for attribute in module._non_persistent_buffers_set:
            if getattr(module, attribute) is not None:
                yield f"{path}.{attribute}" if path else attribute, module, attribute


def _by_tensor(model: nn.Module) -> list[tuple[list[str], torch.Tensor]]:
    """Each tensor once, with all its names."""
    found: dict[int, tuple[list[str], torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), ([], tensor.detach()))[0].append(name)
    return list(found.values())


def _stored_names(model: PreTrainedModel, names: list[str]) -> list[str]:
    """Under which a file may have it: a model that was saved without its head has names without the body's prefix."""
    prefix = f"{model.base_model_prefix}."
    return [*names, *(name.removeprefix(prefix) for name in names if name.startswith(prefix))]
