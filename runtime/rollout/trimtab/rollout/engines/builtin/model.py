"""The model behind the built-in engine: loading, prefill and decode of a batch, and taking new weights in place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DynamicCache


class WeightMismatchError(ValueError):
    """The new weights do not fit the model that is being served; nothing was changed."""


class EngineModel:
    """A causal language model in evaluation mode. Not thread-safe: the scheduler's thread owns it."""

    def __init__(self, path: Path, *, device: str) -> None:
        self._device = torch.device(device)
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        self._model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, device_map={"": device} if device != "cpu" else None, local_files_only=True
        )
        self._model.train(mode=False).requires_grad_(False)
        self.eos_ids = _ids(self._model.config.eos_token_id) | _ids(self._model.generation_config.eos_token_id)
        self.vocabulary = int(self._model.config.vocab_size)
        self.max_length = int(self._model.config.max_position_embeddings)

    @torch.inference_mode()
    def prefill(self, sequences: Sequence[Sequence[int]]) -> tuple[torch.Tensor, Batch]:
        """Logits of every sequence's next token, and the batch to go on with; shorter ones are padded on the left."""
        width = max(len(sequence) for sequence in sequences)
        tokens = torch.zeros(len(sequences), width, dtype=torch.long)
        mask = torch.zeros(len(sequences), width, dtype=torch.long)
        for row, sequence in enumerate(sequences):
            tokens[row, width - len(sequence) :] = torch.tensor(sequence)
            mask[row, width - len(sequence) :] = 1
        batch = Batch(cache=DynamicCache(), mask=mask.to(self._device))
        return self._forward(tokens.to(self._device), batch), batch

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int], batch: Batch) -> torch.Tensor:
        """Logits after one more token on every row."""
        batch.mask = torch.cat([batch.mask, batch.mask.new_ones(batch.mask.shape[0], 1)], dim=1)
        return self._forward(torch.tensor(tokens, device=self._device)[:, None], batch)

    @torch.inference_mode()
    def keep(self, rows: Sequence[int], batch: Batch) -> None:
        """Drop the rows that are finished."""
        index = torch.tensor(rows, device=self._device)
        batch.cache.batch_select_indices(index)
        batch.mask = batch.mask[index]

    def _forward(self, tokens: torch.Tensor, batch: Batch) -> torch.Tensor:
        positions = (batch.mask.cumsum(dim=1) - 1).clamp_(min=0)[:, -tokens.shape[1] :]
        output = self._model(
            input_ids=tokens,
            attention_mask=batch.mask,
            position_ids=positions,
            past_key_values=batch.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits = output.logits[:, -1]
        assert isinstance(logits, torch.Tensor)
        return logits

    @torch.inference_mode()
    def load(self, folder: Path) -> None:
        """Copy the folder's tensors over the served ones, once all names and shapes are found to fit."""
        served: dict[str, torch.Tensor] = self._model.state_dict()
        fresh: dict[str, torch.Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            try:
                fresh |= load_file(file)
            except SafetensorError as error:
                raise WeightMismatchError(f"{file.name} is not a whole safetensors file: {error}") from None
        for name, tensor in fresh.items():
            if name not in served:
                raise WeightMismatchError(f"{folder} holds {name}, which the served model does not have")
            if tensor.shape != served[name].shape:
                raise WeightMismatchError(
                    f"{name} in {folder} has shape {list(tensor.shape)}, served is {list(served[name].shape)}"
                )
        # Tied tensors are stored once, under any of their names.
        covered = {served[name].data_ptr() for name in fresh}
        missing = [name for name, tensor in served.items() if tensor.data_ptr() not in covered]
        if missing:
            raise WeightMismatchError(f"{folder} lacks {len(missing)} tensors of the served model, first {missing[0]}")
        for name, tensor in fresh.items():
            served[name].copy_(tensor)


class Batch:
    """Key-value cache and attention mask of the sequences that are decoded together."""

    def __init__(self, *, cache: DynamicCache, mask: torch.Tensor) -> None:
        self.cache = cache
        self.mask = mask


def _ids(eos: int | list[int] | None) -> frozenset[int]:
    return frozenset([eos] if isinstance(eos, int) else eos or ())
