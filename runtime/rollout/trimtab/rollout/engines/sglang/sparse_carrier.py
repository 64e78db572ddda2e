"""Carries sparse updates to an SGLang that we launched: the file of the built-in engine, through our weight loader."""

from __future__ import annotations

from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import EngineRefused, WeightUpdate
from trimtab.rollout.engines.sglang.sparse_update import (
    COMMIT,
    PREPARE,
    check_outcome,
    serialized_path,
    takes_sparse_updates,
)
from trimtab.rollout.engines.sparse_file import SparseFile


class SglangSparseFile(SparseFile):
    """To be given in a pause. A loader that raises takes SGLang's scheduler down, so there are two steps: the first
    raises nothing and leaves its verdict in a file, and only the second changes weights, and the version with them.
    """

    async def give(self, engine: EngineClient, *, weight_version: str, timeout_s: float) -> WeightUpdate:
        if not takes_sparse_updates(await engine.server_info(timeout_s=timeout_s)):
            raise EngineRefused("/server_info: it was not launched with our weight loaders, or has several ranks")
        # SGLang does not tell its loaders what it serves.
        served = (await engine.model_info(timeout_s=timeout_s)).weight_version
        path = [serialized_path(self.path)]
        await engine.begin_weight_update(timeout_s=timeout_s)
        try:
            await engine.update_weights_from_tensor(path, load_format=PREPARE, weight_version=None, timeout_s=timeout_s)
            check_outcome(self.path, base_version=served)
            return await engine.update_weights_from_tensor(
                path, load_format=COMMIT, weight_version=weight_version, timeout_s=timeout_s
            )
        finally:
            # Also after a failure: otherwise the next beginning is refused.
            await engine.end_weight_update(timeout_s=timeout_s)
