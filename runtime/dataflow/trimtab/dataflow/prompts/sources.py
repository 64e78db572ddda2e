"""The prompts of a job, from what its manifest says to the order they come in."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path, PurePosixPath

from trimtab.api.job import RLJob
from trimtab.api.prompts import PromptInput
from trimtab.dataflow.prompts.arrow import ArrowRows
from trimtab.dataflow.prompts.fetch import SCHEME, PromptFetcher
from trimtab.dataflow.prompts.generated import GeneratedRows
from trimtab.dataflow.prompts.hugging_face import SPLITS_FILE, STATE_FILE, open_hugging_face
from trimtab.dataflow.prompts.jsonl import JsonLines
from trimtab.dataflow.prompts.order import MixedSource, PromptOrder
from trimtab.dataflow.prompts.parquet import open_parquet
from trimtab.dataflow.prompts.prompt import Progress, Prompt, PromptRows, PromptSourceError
from trimtab.dataflow.prompts.validation import TokenLimit, validated
from trimtab.fabric.objects.below import Wanted
from trimtab.fabric.plugins import load_class
from trimtab.fabric.readable import unreadable
from trimtab.fabric.settings import ObjectStoreSettings

# A prompt's id ends in the number of its row, and is 256 characters at most.
_MAX_PREFIX = 236


async def read_prompts(
    job: RLJob, *, folder: Path, object_store: ObjectStoreSettings | None, scratch: Path | None
) -> PromptOrder:
    """Fetch what lies in object storage, open every source, check every prompt. Files are read in a thread: the pod
    stays alive to its probes, however long that takes. `folder` is what relative paths are relative to."""
    data, limit = job.spec.data, _token_limit(job, folder=folder)
    inputs = [
        NamedInput(field=f"data.prompts[{source.name}]", name=source.name, weight=source.weight, settings=source)
        for source in data.prompts
    ]
    sources = await read_sources(inputs, limit=limit, folder=folder, object_store=object_store, scratch=scratch)
    return PromptOrder(sources, seed=data.seed, shuffle=data.shuffle, epochs=data.epochs)


@dataclass(frozen=True, kw_only=True)
class NamedInput:
    """A source as the manifest has it; `field` is what messages call it."""

    field: str
    name: str
    weight: float
    settings: PromptInput


async def read_sources(
    inputs: Sequence[NamedInput],
    *,
    limit: TokenLimit | None,
    folder: Path,
    object_store: ObjectStoreSettings | None,
    scratch: Path | None,
) -> list[MixedSource]:
    paths = {one.name: await _local_path(one, folder, object_store, scratch) for one in inputs}
    stopping = threading.Event()
    reader = _Reader(folder, scratch, Progress(clock=time.monotonic, stopping=stopping))
    try:
        return await asyncio.to_thread(reader.sources, inputs, paths, limit=limit)
    finally:
        # Cancelled, the thread would go on to the end.
        stopping.set()


async def _local_path(
    source: NamedInput, folder: Path, object_store: ObjectStoreSettings | None, scratch: Path | None
) -> Path | None:
    """The file or folder on disk; None for a generator, which has none."""
    uri, wanted = _location(source.settings)
    if uri is None or not uri.startswith(SCHEME):
        return None if uri is None else folder / uri
    if object_store is None or scratch is None:
        raise PromptSourceError(f"{source.field}: {uri} needs TRIMTAB_OBJECT_STORE__… and TRIMTAB_SCRATCH")
    return await PromptFetcher(object_store, scratch).fetch(uri, source=source.name, wanted=wanted)


def _location(source: PromptInput) -> tuple[str | None, Wanted]:
    """Where a source is, and which of the objects below that are part of it."""
    if source.jsonl is not None:
        return source.jsonl.uri, lambda path: _is_part(path, ".jsonl")
    if source.parquet is not None:
        return source.parquet.uri, lambda path: _is_part(path, ".parquet")
    if source.hugging_face is not None:
        split = source.hugging_face.split
        return (
            source.hugging_face.uri,
            lambda path: (
                str(path.parent) in (".", split) and (path.name in (SPLITS_FILE, STATE_FILE) or path.suffix == ".arrow")
            ),
        )
    return None, lambda path: False


def _is_part(path: PurePosixPath, suffix: str) -> bool:
    return len(path.parts) == 1 and path.suffix == suffix and not path.name.startswith(".")


def _token_limit(job: RLJob, *, folder: Path) -> TokenLimit | None:
    if job.spec.data.max_prompt_tokens is None:
        return None
    models = [policy.model for policy in job.spec.policies if policy.model is not None]
    return TokenLimit(
        (folder / (model.tokenizer or model.uri) for model in models), max_tokens=job.spec.data.max_prompt_tokens
    )


class _Reader:
    """Opens sources, one after the other, in the thread it is called from."""

    def __init__(self, folder: Path, scratch: Path | None, progress: Progress) -> None:
        self._folder = folder
        self._scratch = scratch
        self._progress = progress
        self._prefixes: set[str] = set()

    def sources(
        self, inputs: Sequence[NamedInput], paths: Mapping[str, Path | None], *, limit: TokenLimit | None
    ) -> list[MixedSource]:
        return [
            validated(
                self._open(one, paths[one.name]),
                field=one.field,
                name=one.name,
                weight=one.weight,
                prompt_column=one.settings.prompt_column,
                limit=limit,
                progress=self._progress,
            )
            for one in inputs
        ]

    def _open(self, named: NamedInput, path: Path | None) -> PromptRows:
        source, field = named.settings, named.field
        column, progress = source.prompt_column, self._progress
        if source.generator is not None:
            return GeneratedRows(
                load_class(
                    source.generator.entrypoint, source.generator.args, field=f"{field}.generator", folder=self._folder
                ),
                entrypoint=source.generator.entrypoint,
                prefix=self._claimed(named.name),
                prompt_column=column,
            )
        assert path is not None
        kind = "jsonl" if source.jsonl is not None else "parquet" if source.parquet is not None else "huggingFace"
        if why := unreadable(path):
            raise PromptSourceError(f"{field}.{kind}.uri: {why}")
        if source.hugging_face is not None:
            return open_hugging_face(
                path,
                split=source.hugging_face.split,
                prefix=self._claimed(named.name),
                prompt_column=column,
                progress=progress,
            )
        files = self._files(named.name, path, field=f"{field}.{kind}.uri", suffix=f".{kind}")
        parts: Sequence[JsonLines | ArrowRows]
        if source.jsonl is not None:
            parts = [
                JsonLines(path, prefix=prefix, prompt_column=column, progress=progress)
                for prefix, path in files.items()
            ]
        else:
            parts = open_parquet(files, scratch=self._scratch, prompt_column=column, progress=progress)
        return parts[0] if len(parts) == 1 else JoinedRows(parts)

    def _files(self, name: str, path: Path, *, field: str, suffix: str) -> dict[str, Path]:
        """The files of a source by the prefix of their prompts' ids."""
        if path.is_file():
            return {self._claimed(name): path}
        if not path.is_dir():
            raise PromptSourceError(f"{field}: {path} is neither a file nor a folder")
        files = sorted(path for path in path.iterdir() if _is_part(PurePosixPath(path.name), suffix))
        if not files:
            raise PromptSourceError(f"{field}: {path} holds no *{suffix} file")
        return {self._claimed(f"{name}-{path.stem}"): path for path in files}

    def _claimed(self, prefix: str) -> str:
        """Ids are `<prefix>-<row>`, so they are unique if prefixes are."""
        if len(prefix) > _MAX_PREFIX or not prefix.isprintable():
            raise PromptSourceError(
                f"data.prompts: {prefix!r} cannot begin the ids of prompts; give the file a plain name of at most "
                f"{_MAX_PREFIX} characters, the source's included"
            )
        if prefix in self._prefixes:
            raise PromptSourceError(f"data.prompts: prompts of two files would be called {prefix}-1; rename one source")
        self._prefixes.add(prefix)
        return prefix


class JoinedRows:
    """Several files of one source, one after the other."""

    def __init__(self, parts: Sequence[JsonLines | ArrowRows]) -> None:
        self._parts = parts
        self._ends = list(accumulate(part.length for part in parts))

    @property
    def length(self) -> int:
        return self._ends[-1]

    def read(self, start: int, stop: int) -> list[Prompt]:
        prompts: list[Prompt] = []
        while start < stop:
            number = bisect_right(self._ends, start)
            before = self._ends[number - 1] if number else 0
            end = min(stop, self._ends[number])
            prompts += self._parts[number].read(start - before, end - before)
            start = end
        return prompts
