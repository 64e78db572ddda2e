"""Sets of held-out prompts, with what the manifest says about sampling them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.api.evaluation import Benchmark
from trimtab.api.job import RLJob
from trimtab.dataflow.ledger.records import BenchmarkPlan
from trimtab.dataflow.prompts.order import MixedSource, PromptOrder
from trimtab.dataflow.prompts.prompt import Prompt, PromptSourceError
from trimtab.dataflow.prompts.sources import NamedInput, read_sources
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.wire.sampling import sampling_fields


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


async def read_benchmarks(
    job: RLJob, *, folder: Path, object_store: ObjectStoreSettings | None, scratch: Path | None
) -> dict[str, HeldOut]:
    """The held-out prompts, in the order of their sources."""
    benchmarks = [] if job.spec.evaluation is None else job.spec.evaluation.benchmarks
    inputs = [NamedInput(field=_benchmark_field(one), name=one.name, weight=1.0, settings=one) for one in benchmarks]
    sources = await read_sources(inputs, limit=None, folder=folder, object_store=object_store, scratch=scratch)
    return {one.name: _held_out(one, source) for one, source in zip(benchmarks, sources, strict=True)}


def _held_out(benchmark: Benchmark, source: MixedSource) -> HeldOut:
    if source.length is None and benchmark.limit is None:
        raise PromptSourceError(
            f"{_benchmark_field(benchmark)}.limit: missing; a generator without end needs one, or a __len__"
        )
    return HeldOut(
        name=benchmark.name,
        prompts=PromptOrder([source], seed=0, shuffle=False),
        count=min(count for count in (source.length, benchmark.limit) if count is not None),
        samples=benchmark.samples,
        sampling=sampling_fields(benchmark.sampling),
    )


def _benchmark_field(benchmark: Benchmark) -> str:
    return f"evaluation.benchmarks[{benchmark.name}]"
