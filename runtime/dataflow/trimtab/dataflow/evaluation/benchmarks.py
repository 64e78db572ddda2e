"""A set of held-out prompts, with what the manifest says about sampling them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.dataflow.ledger.records import BenchmarkPlan
from trimtab.dataflow.prompts.order import PromptOrder
from trimtab.dataflow.prompts.prompt import Prompt


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """`count` prompts from the first, each to be sampled `samples` times."""

    name: str
    prompts: PromptOrder
    count: int
    samples: int
    sampling: Mapping[str, Any]
    """As tasks carry it."""

    def prompt(self, number: int) -> Prompt:
        return self.prompts.at(number)

    @property
    def plan(self) -> BenchmarkPlan:
        return BenchmarkPlan(self.name, self.count, self.samples)
