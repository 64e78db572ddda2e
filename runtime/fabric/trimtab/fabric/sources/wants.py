"""What of a job has to be fetched, and by which pod; and the job with places in the stead of what was fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from trimtab.api.job import RLJob, RLJobSpec
from trimtab.api.policy import Model, Policy
from trimtab.api.prompts import PromptInput
from trimtab.api.source_uri import HubSource, Source, place_below, source_of

_TOKENIZER_FILES = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")
_MODEL_FILES = (*_TOKENIZER_FILES, "*.safetensors")
# The whole model once more, as its makers' own programs read it.
_TWICE = ("consolidated*.safetensors",)

Input = TypeVar("Input", bound=PromptInput)


@dataclass(frozen=True, kw_only=True)
class Want:
    """Files of a source: those that match one of `files` and none of `but`, as fnmatch has it."""

    field: str
    source: Source
    files: tuple[str, ...]
    but: tuple[str, ...] = ()


def trainer_wants(policy: Policy) -> list[Want]:
    return list(_models([policy]))


def rollout_wants(policies: Iterable[Policy]) -> list[Want]:
    return list(_models(policies))


def dataflow_wants(spec: RLJobSpec) -> list[Want]:
    """Prompts from a hub, and of models what counts tokens. Prompts in object storage it fetches itself."""
    found = [want for field, settings in _inputs(spec) for want in _prompts(field, settings)]
    if spec.data.max_prompt_tokens is not None:
        for policy in spec.policies:
            if policy.model is not None:
                named = "uri" if policy.model.tokenizer is None else "tokenizer"
                field = f"policies[{policy.name}].model.{named}"
                found += _want(field, policy.model.tokenizer or policy.model.uri, _TOKENIZER_FILES, but=("*/*",))
    return found


def job_wants(spec: RLJobSpec) -> list[Want]:
    """All of it, for one machine."""
    return [*_models(spec.policies), *dataflow_wants(spec)]


def located(job: RLJob, folder: str) -> RLJob:
    """The job as it would be had someone put its sources into `folder` and named them by path."""

    def place(uri: str) -> str:
        below = place_below(uri)
        return uri if below is None else f"{folder}/{below}"

    spec = job.spec
    policies = tuple(
        policy if policy.model is None else policy.model_copy(update={"model": _moved(policy.model, place)})
        for policy in spec.policies
    )
    prompts = tuple(_moved_prompts(source, place) for source in spec.data.prompts)
    changes: dict[str, object] = {
        "policies": policies,
        "data": spec.data.model_copy(update={"prompts": prompts}),
    }
    if spec.evaluation is not None:
        benchmarks = tuple(_moved_prompts(benchmark, place) for benchmark in spec.evaluation.benchmarks)
        changes["evaluation"] = spec.evaluation.model_copy(update={"benchmarks": benchmarks})
    return job.model_copy(update={"spec": spec.model_copy(update=changes)})


def _moved(model: Model, place: Callable[[str], str]) -> Model:
    tokenizer = None if model.tokenizer is None else place(model.tokenizer)
    return model.model_copy(update={"uri": place(model.uri), "tokenizer": tokenizer})


def _moved_prompts(source: Input, place: Callable[[str], str]) -> Input:
    moved = {
        name: files.model_copy(update={"uri": place(files.uri)})
        for name, files in (
            ("jsonl", source.jsonl),
            ("parquet", source.parquet),
            ("hugging_face", source.hugging_face),
        )
        if files is not None and isinstance(source_of(files.uri), HubSource)
    }
    return source.model_copy(update=moved)


def _models(policies: Iterable[Policy]) -> Iterator[Want]:
    for policy in policies:
        if policy.model is None:
            continue
        field = f"policies[{policy.name}].model"
        yield from _want(f"{field}.uri", policy.model.uri, _MODEL_FILES, but=("*/*", *_TWICE))
        if policy.model.tokenizer is not None:
            yield from _want(f"{field}.tokenizer", policy.model.tokenizer, _TOKENIZER_FILES, but=("*/*",))


def _inputs(spec: RLJobSpec) -> Iterator[tuple[str, PromptInput]]:
    for source in spec.data.prompts:
        yield f"data.prompts[{source.name}]", source
    for benchmark in spec.evaluation.benchmarks if spec.evaluation is not None else ():
        yield f"evaluation.benchmarks[{benchmark.name}]", benchmark


def _prompts(field: str, settings: PromptInput) -> Iterator[Want]:
    for kind, files in (("jsonl", settings.jsonl), ("parquet", settings.parquet)):
        if files is not None and isinstance(source := source_of(files.uri), HubSource):
            below = f"{source.path}/" if source.path else ""
            single = (source.path,) if source.path else ()
            yield from _want(f"{field}.{kind}.uri", files.uri, (*single, f"{below}*.{kind}"), but=(f"{below}*/*",))
    folder = settings.hugging_face
    if folder is not None and isinstance(source := source_of(folder.uri), HubSource):
        below = f"{source.path}/" if source.path else ""
        wanted = (f"{below}*.json", f"{below}*.arrow")
        yield from _want(f"{field}.huggingFace.uri", folder.uri, wanted)


def _want(field: str, uri: str, files: tuple[str, ...], *, but: tuple[str, ...] = ()) -> Iterator[Want]:
    source = source_of(uri)
    if source is not None:
        yield Want(field=field, source=source, files=files, but=but)
