"""The HTTP requests that write a sparse update file into a running SGLang, without depending on its version of torch.

SGLang takes weights that come over HTTP as a pickle of named tensors and hands them to a loader of ours. The payload
here is one name, the path of the file, with an empty tensor beside it; the content stays in the file.

In a pause: `begin`, `prepare`, `outcome_of`, `commit`, `end`. A loader that raises takes SGLang's scheduler down, so
`prepare` raises nothing: it checks, keeps what it read for `commit`, and leaves its verdict in a file. Only `commit`
changes weights, and the version changes with them.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_PREPARE, _COMMIT = "trimtab_sparse_loader.prepare", "trimtab_sparse_loader.commit"
LOADERS = (_PREPARE, _COMMIT)
"""What SGLang must have been launched with; it dies of a loader that it does not know."""
_PICKLE_PROTOCOL = 4
_OUTCOME_SUFFIX = ".outcome"


class SparseUpdateRefused(ValueError):
    """The update cannot be written into the served model exactly. Nothing was changed; load the whole folder."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """To be sent with POST; anything but 200 is a failure."""

    path: str
    body: Mapping[str, Any]


class _EmptyTensor:
    """Pickles as the call `torch.Tensor()`, which every version of torch and SGLang's unpickler understand."""

    def __reduce__(self) -> tuple[type[torch.Tensor], tuple[()]]:
        return torch.Tensor, ()


def takes_sparse_updates(server_info: Mapping[str, Any]) -> bool:
    """Whether the server behind this answer of GET /server_info was launched for them."""
    loaders = server_info.get("custom_weight_loader") or ()
    return set(LOADERS) <= set(loaders) and server_info.get("tp_size") == 1


def begin() -> Request:
    """SGLang takes tensors only between this and `end`."""
    return Request(path="/begin_weight_update", body={})


def prepare(file: Path) -> Request:
    return _update(file, loader=_PREPARE, weight_version=None)


def commit(file: Path, *, weight_version: str) -> Request:
    """After a `prepare` of the same file whose outcome was good."""
    return _update(file, loader=_COMMIT, weight_version=weight_version)


def end() -> Request:
    """Also after a failure: otherwise the next `begin` is refused."""
    return Request(path="/end_weight_update", body={})


def outcome_of(file: Path, *, base_version: str) -> None:
    """What `prepare` found, once. Raises SparseUpdateRefused.

    SGLang does not tell its loaders which version it serves: the caller asks for it in the pause and names it here.
    """
    path = file.with_name(file.name + _OUTCOME_SUFFIX)
    try:
        outcome = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
    except (OSError, ValueError) as error:
        raise SparseUpdateRefused(f"{path.name} cannot be read: {error}; does SGLang see this folder?") from None
    if outcome["refused"] is not None:
        raise SparseUpdateRefused(outcome["refused"])
    if outcome["base_version"] != base_version:
        raise SparseUpdateRefused(f"the update changes version {outcome['base_version']}, served is {base_version}")


def _update(file: Path, *, loader: str, weight_version: str | None) -> Request:
    payload = pickle.dumps([(str(file), _EmptyTensor())], protocol=_PICKLE_PROTOCOL)
    return Request(
        path="/update_weights_from_tensor",
        body={
            "serialized_named_tensors": [base64.b64encode(payload).decode("ascii")],
            "load_format": loader,
            "weight_version": weight_version,
            # SGLang asserts that nothing runs when it flushes, and a paused engine may hold requests.
            "flush_cache": False,
        },
    )
