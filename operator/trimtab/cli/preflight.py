"""What is wrong with the files that a manifest names, found out in the moment before anything starts. Pods check the
same and more, each what it reads: here a person waits, and a process takes seconds to find out.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from trimtab.api.job import RLJob
from trimtab.api.pod_template import template_command
from trimtab.api.policy import Model, Policy
from trimtab.api.prompts import PromptInput
from trimtab.api.source_uri import source_of
from trimtab.api.streams import Streams
from trimtab.api.workflow import Workflow
from trimtab.dataflow.prompts.prompt import checked_content
from trimtab.fabric.readable import unreadable
from trimtab.fabric.wire.errors import WireError

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model")
# Of a file of any length the beginning: what is wrong with the rest, the dataflow says when it has read it all.
_ROWS = 1000
_MAX_LINE_BYTES = 1 << 20


def problems(job: RLJob, folder: Path) -> list[str]:
    """Each with the field, the file and the line or the fix. `folder` is what relative paths are relative to."""
    found: list[str] = []
    for policy in job.spec.policies:
        if policy.model is not None:
            found += _model(policy, policy.model, folder)
    for source in job.spec.data.prompts:
        found += _prompts(f"spec.data.prompts[{source.name}]", source, folder)
    for benchmark in job.spec.evaluation.benchmarks if job.spec.evaluation is not None else ():
        found += _prompts(f"spec.evaluation.benchmarks[{benchmark.name}]", benchmark, folder)
    return [*found, *_streams(job.spec.streams), *_workflow(job.spec.workflow, folder)]


def _streams(streams: Streams) -> Iterator[str]:
    if streams.replicas not in (None, 1):
        yield f"spec.streams.replicas: {streams.replicas} need as many NATS servers, and here runs one; leave it out"
    if streams.placement is not None:
        yield "spec.streams.placement: here runs one NATS server, in no cluster and without tags; leave it out"


def _model(policy: Policy, model: Model, folder: Path) -> Iterator[str]:
    field, place = f"spec.policies[{policy.name}].model.uri", folder / model.uri
    ours = template_command(policy.trainer.template, container="trainer") is None
    if source_of(model.uri) is not None:
        # It is looked at when it has been fetched.
        return
    if why := unreadable(place):
        yield f"{field}: {why}; name the folder of a model, hf://org/name or s3://bucket/prefix"
    elif ours and not (place / "config.json").is_file():
        yield f"{field}: {place} holds no config.json, so it is no model in transformers format"
    elif model.tokenizer is None and not _has_tokenizer(place):
        yield f"{field}: {place} holds no tokenizer, such as a tokenizer.json; save the model's tokenizer into it"
    if model.tokenizer is None or source_of(model.tokenizer) is not None:
        return
    if not _has_tokenizer(own := folder / model.tokenizer):
        of = f"spec.policies[{policy.name}].model.tokenizer"
        yield f"{of}: {unreadable(own) or f'{own} holds no tokenizer, such as a tokenizer.json'}"


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _TOKENIZERS)


def _prompts(field: str, source: PromptInput, folder: Path) -> Iterator[str]:
    for kind, named in (("jsonl", source.jsonl), ("parquet", source.parquet), ("huggingFace", source.hugging_face)):
        if named is None or source_of(named.uri) is not None:
            continue
        place = folder / named.uri
        why = unreadable(place)
        if why is None and kind == "jsonl" and place.is_file():
            why = _unfit(place, column=source.prompt_column)
        if why is not None:
            yield f"{field}.{kind}.uri: {why}"


def _unfit(file: Path, *, column: str) -> str | None:
    """What is wrong with the first of its rows that is no prompt."""
    rows = 0
    with file.open("rb") as lines:
        for number, line in enumerate(islice(iter(lambda: lines.readline(_MAX_LINE_BYTES + 1), b""), _ROWS), start=1):
            if len(line) > _MAX_LINE_BYTES:
                return None
            if line.isspace():
                continue
            rows += 1
            try:
                checked_content(json.loads(line), prompt_column=column)
            except json.JSONDecodeError as error:
                return f"{file}, line {number}: not JSON: {error.msg}"
            except (RecursionError, WireError, ValueError) as error:
                return f"{file}, line {number}: {error}"
    return None if rows else f"{file} holds no prompt"


def _workflow(workflow: Workflow, folder: Path) -> Iterator[str]:
    """Whether the class is there, without running any code of the user's."""
    module, _, name = workflow.entrypoint.partition(":")
    field = f"spec.workflow.entrypoint {workflow.entrypoint!r}"
    path = workflow.source.path if workflow.source is not None else None
    if path is not None:
        source = folder / path
        if not source.is_dir():
            yield f"spec.workflow.source.path: {source} is no folder"
            return
        own = [source / f"{module.replace('.', '/')}.py", source / module.replace(".", "/") / "__init__.py"]
        if file := next((file for file in own if file.is_file()), None):
            if why := unreadable(file) or _without_class(file, name):
                yield f"{field}: {why}"
            return
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        where = f"{folder / path} holds no {module.partition('.')[0]}.py, and no" if path is not None else "no"
        yield f"{field}: {where} module of that name is installed; set spec.workflow.source.path to its folder"


def _without_class(file: Path, name: str) -> str | None:
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        return f"{file}, line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError) as error:
        return f"{file} is no Python: {error}"
    bound = {bound for node in ast.walk(tree) for bound in _bound(node)}
    if name in bound or "*" in bound or "__getattr__" in bound:
        return None
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return f"{file} has no class {name}; it has {', '.join(classes) or 'none'}"


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that a statement may give to something, at any depth: who is too generous here is corrected by the pod."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
