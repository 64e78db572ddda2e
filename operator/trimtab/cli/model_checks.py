"""Whether the models of a job are of a kind that its engines compute, and their tokenizers are what its workflow needs:
found out from small files, without importing torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trimtab.api.job import RLJob
from trimtab.api.placement import policies_of
from trimtab.api.pod_template import template_command
from trimtab.api.policy import Model, Policy
from trimtab.api.pool import JobPool
from trimtab.cli.finding import Finding, fine, problem
from trimtab.rollout.engines.builtin.families import FAMILIES

_MOST_BYTES = 64 << 20
_MAX_REASON = 200
_CHATS = ("chat", "solver_chat", "verifier_chat")


def models(job: RLJob, folder: Path) -> list[Finding]:
    """Of those that lie beside the manifest or at an absolute path; what is not there at all, preflight names."""
    found: list[Finding] = []
    for policy in job.spec.policies:
        if policy.model is not None:
            found += _of_policy(job, policy, policy.model, folder)
    return found


def config_of(folder: Path) -> Mapping[str, Any] | None:
    """None where there is none that can be read."""
    return _json_object(folder / "config.json")


def _of_policy(job: RLJob, policy: Policy, model: Model, folder: Path) -> Iterator[Finding]:
    field, place = f"spec.policies[{policy.name}].model", folder / model.uri
    config = config_of(place)
    if config is not None:
        yield from _family(job, policy, config, field=f"{field}.uri", place=place)
    words = folder / (model.tokenizer or model.uri)
    if (words / "tokenizer.json").is_file():
        yield from _tokenizer(job, words, field=f"{field}.{'uri' if model.tokenizer is None else 'tokenizer'}")


def _family(job: RLJob, policy: Policy, config: Mapping[str, Any], *, field: str, place: Path) -> Iterator[Finding]:
    family = config.get("model_type")
    builtin = [pool.name for pool in job.spec.pools if _computes_here(job, pool, policy)]
    if builtin and family not in FAMILIES:
        yield problem(
            f"{field}: {place} is a model of type {str(family)!r:.64}, and the builtin engine of pool {builtin[0]}"
            f" computes {', '.join(FAMILIES)}; use engine sglang for it"
        )
    elif builtin and config.get("quantization_config") is not None:
        yield problem(f"{field}: {place} is quantised; the builtin engine computes bf16, fp16 and fp32")
    else:
        yield fine(f"{policy.name} is a model of type {family!s:.64}")


def _computes_here(job: RLJob, pool: JobPool, policy: Policy) -> bool:
    ours = pool.engine.name == "builtin" and template_command(pool.template, container="engine") is None
    return ours and policy in policies_of(job.spec, pool, name=pool.name)


def _tokenizer(job: RLJob, folder: Path, *, field: str) -> Iterator[Finding]:
    try:
        _check_usable(folder / "tokenizer.json")
    except _Unusable as error:
        yield problem(f"{field}: {error}; save the model's own there")
        return
    asked = _asks_for_template(job)
    if asked is not None and not _has_template(folder):
        yield problem(
            f"{field}: the tokenizer in {folder} has no chat template, and {asked} needs one; take the tokenizer of a"
            " chat model, or leave that out"
        )
    else:
        yield fine(f"the tokenizer in {folder} {'has a' if _has_template(folder) else 'has no'} chat template")


class _Unusable(ValueError):
    """What lies there is no tokenizer."""


def _check_usable(file: Path) -> None:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return
    # The library has one kind of error for everything, which is Exception.
    try:
        Tokenizer.from_file(str(file))
    except Exception as error:
        raise _Unusable(f"{file} is no tokenizer: {' '.join(str(error).split())[:_MAX_REASON]}") from error


def _asks_for_template(job: RLJob) -> str | None:
    """The argument of a shipped workflow that only a template can do something about."""
    arguments = job.spec.workflow.args or {}
    for name in _CHATS:
        chat = arguments.get(name)
        if isinstance(chat, dict) and chat.keys() - {"suffix"}:
            return f"spec.workflow.args.{name}"
    return None


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    config = _json_object(folder / "tokenizer_config.json")
    return config is not None and bool(config.get("chat_template"))


def _json_object(file: Path) -> Mapping[str, Any] | None:
    try:
        with file.open("rb") as stream:
            value = json.loads(stream.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
