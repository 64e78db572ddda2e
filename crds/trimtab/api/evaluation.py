"""Evaluation on held-out prompts, beside training and never part of its batches."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.prompts import PromptInput
from trimtab.api.rules import ListMap
from trimtab.api.sampling import Sampling
from trimtab.api.scalars import Count, MemberName, PositiveCount


class Benchmark(PromptInput):
    """One set of held-out prompts."""

    name: MemberName
    """Name of the benchmark, unique in the job; results and metrics carry it."""
    samples: Annotated[int, Field(ge=1, le=1024)] = 1
    """Episodes per prompt; the score is their mean."""
    limit: PositiveCount | None = None
    """Prompts taken, from the first; absent, all."""
    sampling: Sampling = Sampling(temperature=0.0)
    """How tokens are drawn; the most likely one by default, for scores that can be compared."""


class Evaluation(ApiModel):
    """When and on what the policies are evaluated."""

    every_steps: PositiveCount = 50
    """Trainer steps between evaluations. After the last step there is one more, whatever the distance."""
    at_start: bool = True
    """Evaluate the starting weights too, as the baseline. The first step waits for it: no newer weights answer."""
    keep_best: bool = True
    """Keep the best version on each benchmark in the store however old it is, of equal ones the newest."""
    benchmarks: Annotated[tuple[Benchmark, ...], ListMap(), Field(min_length=1, max_length=32)]
    """What is evaluated."""


class EvaluationResult(ApiModel):
    """The latest score on one benchmark."""

    benchmark: MemberName
    """Name of the benchmark."""
    score: float
    """Mean reward."""
    step: Count
    """Trainer step the evaluated weights come from."""
    episodes: Count
    """Episodes it rests on; failed ones are not among them."""
    best_step: Count | None = None
    """Trainer step of the weights that did best so far; with `evaluation.keepBest` they stay in the store."""
    best_score: float | None = None
    """Their score."""
    time: datetime
    """When it was finished."""
