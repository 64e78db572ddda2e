"""One request inside the built-in engine: what was asked, what has been sampled so far, and how it ended."""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FinishType = Literal["stop", "length", "abort"]


class SamplingParams(BaseModel):
    """The subset of SGLang's sampling parameters that the built-in engine honours; others are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_new_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1)
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    sampling_seed: int | None = None


@dataclass(kw_only=True, eq=False)
class Generation:
    """Mutable progress of one request; owned by the model thread once it is queued, until `done`."""

    request_id: str
    input_ids: list[int]
    params: SamplingParams
    random: random.Random
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishType | None = None
    matched: int | None = None
    weight_version: str = ""
    """Of the weights that were served when it ended."""
    done: Future[None] = field(default_factory=Future)

    def append(self, token: int, logprob: float, *, eos_ids: frozenset[int]) -> None:
        self.output_ids.append(token)
        self.logprobs.append(logprob)
        if token in self.params.stop_token_ids or (token in eos_ids and not self.params.ignore_eos):
            self.finish, self.matched = "stop", token
        elif len(self.output_ids) >= self.params.max_new_tokens:
            self.finish = "length"
