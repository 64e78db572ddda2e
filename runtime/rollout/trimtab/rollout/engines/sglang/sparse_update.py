"""What passes between us and the weight loader that runs inside SGLang, without depending on its version of torch.

SGLang takes weights that come over HTTP as a pickle of named tensors for each rank and hands them to a loader of ours.
The payload here is two names, the path of the file and of the rank's verdict, with empty tensors beside them; the
content stays in the file.
"""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path

import torch

from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import EngineRefused, ServerInfo, WeightUpdate
from trimtab.rollout.engines.sparse_file import SparseFile

PREPARE, COMMIT = "trimtab_sparse_loader.prepare", "trimtab_sparse_loader.commit"
LOADERS = (PREPARE, COMMIT)
"""What SGLang must have been launched with; it dies of a loader that it does not know."""
_PICKLE_PROTOCOL = 4


class SparseUpdateRefused(EngineRefused):
    """The update cannot be written into the served model exactly. Nothing was changed; load the whole folder."""


class _EmptyTensor:
    """Pickles as the call `torch.Tensor()`, which every version of torch and SGLang's unpickler understand."""

    def __reduce__(self) -> tuple[type[torch.Tensor], tuple[()]]:
        return torch.Tensor, ()


def serialized_paths(file: Path, *, rank: int) -> str:
    """The named tensors of a rank: for `PREPARE`, and again for `COMMIT` if the outcome was good on all ranks."""
    names = [(str(file), _EmptyTensor()), (str(outcome_of(file, rank=rank)), _EmptyTensor())]
    return base64.b64encode(pickle.dumps(names, protocol=_PICKLE_PROTOCOL)).decode("ascii")


def outcome_of(file: Path, *, rank: int) -> Path:
    return file.with_name(f"{file.name}.outcome.{rank}")


def check_outcome(file: Path, *, rank: int, base_version: str) -> None:
    """What `PREPARE` found, once. Raises SparseUpdateRefused; `base_version` is what the engine serves."""
    path = outcome_of(file, rank=rank)
    try:
        outcome = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
    except (OSError, ValueError) as error:
        raise SparseUpdateRefused(f"{path.name} cannot be read: {error}; does SGLang see this folder?") from None
    if outcome["refused"] is not None:
        raise SparseUpdateRefused(outcome["refused"])
    if outcome["base_version"] != base_version:
        raise SparseUpdateRefused(f"the update changes version {outcome['base_version']}, served is {base_version}")


class SglangSparseFile(SparseFile):
    """Carries sparse updates to an SGLang that we launched: the file of the built-in engine, through our weight loader.
    To be given in a pause. A loader that raises takes SGLang's scheduler down, so there are two steps: the first raises
    nothing and leaves its verdict in a file, and only the second changes weights, and the version with them.
    """

    def suits(self, info: ServerInfo) -> bool:
        return set(LOADERS) <= set(info.weight_loaders) and info.tensor_parallel is not None

    async def give(
        self, engine: EngineClient, *, launched: ServerInfo, weight_version: str, timeout_s: float
    ) -> WeightUpdate:
        ranks = range(launched.tensor_parallel or 1)
        # SGLang does not tell its loaders what it serves.
        served = (await engine.model_info(timeout_s=timeout_s)).weight_version
        paths = [serialized_paths(self.path, rank=rank) for rank in ranks]
        for rank in ranks:
            # A verdict on an update before, which nobody has read, is not one on this.
            outcome_of(self.path, rank=rank).unlink(missing_ok=True)
        await engine.begin_weight_update(timeout_s=timeout_s)
        try:
            await engine.update_weights_from_tensor(
                paths, load_format=PREPARE, weight_version=None, timeout_s=timeout_s
            )
            for rank in ranks:
                check_outcome(self.path, rank=rank, base_version=served)
            return await engine.update_weights_from_tensor(
                paths, load_format=COMMIT, weight_version=weight_version, timeout_s=timeout_s
            )
        finally:
            # Also after a failure: otherwise the next beginning is refused.
            await engine.end_weight_update(timeout_s=timeout_s)
