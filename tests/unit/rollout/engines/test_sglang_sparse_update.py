"""What is told to the weight loader inside SGLang, and what is made of its verdict."""

from __future__ import annotations

import base64
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.rollout.engines.responses import server_info
from trimtab.rollout.engines.sglang.sparse_update import (
    LOADERS,
    SglangSparseFile,
    SparseUpdateRefused,
    check_outcome,
    outcome_of,
    serialized_paths,
)

FILE = Path("/scratch/update.safetensors")


class _Strict(pickle.Unpickler):
    """Allows one name of those that SGLang's unpickler allows, and so no detail of a version of torch."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != ("torch", "Tensor"):
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def test_the_payload_of_a_rank_is_two_paths_with_empty_tensors() -> None:
    encoded = serialized_paths(FILE, rank=1)
    named = _Strict(io.BytesIO(base64.b64decode(encoded, validate=True))).load()
    assert [name for name, _ in named] == [str(FILE), f"{FILE}.outcome.1"]
    assert all(isinstance(tensor, torch.Tensor) and tensor.numel() == 0 for _, tensor in named)


@pytest.mark.parametrize(
    ("info", "takes"),
    [
        ({"custom_weight_loader": list(LOADERS), "tp_size": 1}, True),
        ({"custom_weight_loader": list(LOADERS), "tp_size": 2}, True),
        ({"custom_weight_loader": list(LOADERS)}, False),
        ({"custom_weight_loader": [LOADERS[0]], "tp_size": 1}, False),
        ({"custom_weight_loader": None, "tp_size": 1}, False),
        ({}, False),
    ],
)
def test_only_a_server_launched_for_them_takes_sparse_updates(info: dict[str, Any], takes: bool) -> None:
    assert SglangSparseFile(Path("update")).suits(server_info(info)) is takes


def _leave(file: Path, **outcome: str | None) -> None:
    outcome_of(file, rank=0).write_text(json.dumps(outcome))


def test_a_good_outcome_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "update.safetensors"
    _leave(file, refused=None, base_version="3")
    check_outcome(file, rank=0, base_version="3")
    with pytest.raises(SparseUpdateRefused, match="does SGLang see this folder"):
        check_outcome(file, rank=0, base_version="3")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ({"refused": "it is packed", "base_version": None}, "it is packed"),
        ({"refused": None, "base_version": "2"}, "changes version 2, served is 3"),
    ],
)
def test_a_refusal_gives_its_reason(tmp_path: Path, outcome: dict[str, str | None], reason: str) -> None:
    file = tmp_path / "update.safetensors"
    _leave(file, **outcome)
    with pytest.raises(SparseUpdateRefused, match=reason):
        check_outcome(file, rank=0, base_version="3")
