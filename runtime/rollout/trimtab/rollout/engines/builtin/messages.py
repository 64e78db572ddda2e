"""What the endpoints take, as SGLang names it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from trimtab.rollout.engines.builtin.generation import SamplingParams


class GenerateRequest(BaseModel):
    """One prompt or several, as token ids or text. Fields that are not here are refused by name."""

    model_config = ConfigDict(extra="forbid")

    rid: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    text: str | list[str] | None = None
    sampling_params: SamplingParams = SamplingParams()
    return_logprob: bool = False

    @model_validator(mode="after")
    def _one_prompt_form(self) -> GenerateRequest:
        if (self.input_ids is None) == (self.text is None):
            raise ValueError("give either input_ids or text")
        if not all(self.prompts()):
            raise ValueError("input_ids and text must not be empty")
        if len({isinstance(entry, list) for entry in self.input_ids or ()}) > 1:
            raise ValueError("input_ids must be one list of tokens, or a list of such lists")
        if isinstance(self.rid, list) and len(self.rid) != len(self.prompts()):
            raise ValueError("a list of rid needs as many prompts")
        return self

    @property
    def batched(self) -> bool:
        """Several prompts are answered with a list."""
        return isinstance(self.text, list) or any(isinstance(entry, list) for entry in self.input_ids or ())

    def prompts(self) -> Sequence[str | list[int]]:
        if isinstance(self.text, str):
            return [self.text]
        if self.text is not None:
            return self.text
        lists = [entry for entry in self.input_ids or () if isinstance(entry, list)]
        return lists or [[entry for entry in self.input_ids or () if isinstance(entry, int)]]


class PauseRequest(BaseModel):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class AbortRequest(BaseModel):
    rid: str = ""
    abort_all: bool = False


class UpdateFromDiskRequest(BaseModel):
    """`load_format` sparse takes the file of `sparse_update`, anything else a folder with a checkpoint."""

    model_path: Path
    load_format: Literal["auto", "safetensors", "sparse"] | None = None
    weight_version: str | None = None
    abort_all_requests: bool = False

    @model_validator(mode="after")
    def _sparse_is_named(self) -> UpdateFromDiskRequest:
        if self.load_format == "sparse" and self.weight_version is None:
            raise ValueError("a sparse update needs the weight_version that it leads to")
        return self


class UpdateVersionRequest(BaseModel):
    new_version: str
    abort_all_requests: bool = True


class WeightsCheckerRequest(BaseModel):
    action: Literal["checksum"]
