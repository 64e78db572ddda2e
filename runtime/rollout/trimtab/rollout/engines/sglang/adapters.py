"""Gives adapters to an SGLang, each version under its label as a name.

A request keeps the adapter that it began with. So nothing is paused for a new one, all tokens of a request are of one
version, and an adapter is unloaded when no request has it any more.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import (
    BASE_WEIGHTS,
    EngineRefused,
    EngineUnavailable,
    Generated,
    ModelInfo,
    Progress,
    SamplingSettings,
    WeightRun,
    WeightUpdate,
)
from trimtab.weights.adapters import InvalidAdapter, write_peft_folder

_log = structlog.get_logger(__name__)
MOST_LOADED = 8
"""Adapters that SGLang keeps, those left by a worker that died among them: it drops what was used longest ago."""
_MOST_OLDER = 3
"""Versions besides the newest that requests may still run with. Those of the oldest are aborted then, with their tokens
so far, and go on with the newest.
"""


class AdapterClient(EngineClient):
    """An SGLang that was started for adapters of the policy's rank and targets. In place of a checkpoint's folder it
    takes one with adapters.
    """

    def __init__(self, url: str, *, request_timeout_s: float, folder: Path) -> None:
        """`folder` is for copies of what is loaded, and for nothing else."""
        super().__init__(url, request_timeout_s=request_timeout_s, whole_logprobs=True)
        self._folder = folder
        self._serving = BASE_WEIGHTS
        self._running: dict[str, set[str]] = {}
        """Requests under way, by the adapter that they began with; in the order in which adapters came."""

    async def generate(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        weight_version: str,
        progress: Progress | None = None,
    ) -> Generated:
        """Whatever the engine is believed to serve, the newest that it was given is meant."""
        label = self._serving
        running = self._running.setdefault(label, set())
        running.add(request_id)
        try:
            part = await super().generate(
                input_ids,
                settings,
                request_id=request_id,
                weight_version=label,
                progress=None if progress is None else lambda part: progress(_labelled(part, label)),
            )
        except EngineRefused as error:
            if label != BASE_WEIGHTS and "lora" in str(error).lower():
                # It was started again, and has none of what it was given.
                raise EngineUnavailable(str(error)) from error
            raise
        finally:
            running.discard(request_id)
        return _labelled(part, label)

    def _weights_field(self, weight_version: str) -> Mapping[str, Any]:
        # SGLang keeps the prefixes of each adapter apart by itself.
        return {} if weight_version == BASE_WEIGHTS else {"lora_path": weight_version}

    async def model_info(self, *, timeout_s: float) -> ModelInfo:
        info = await super().model_info(timeout_s=timeout_s)
        if info.weight_version != self._serving:
            self._serving = info.weight_version
            self._running = {info.weight_version: set()}
        return info

    async def update_weights_from_disk(self, folder: Path, *, weight_version: str, timeout_s: float) -> WeightUpdate:
        """Adapters in `folder/model.safetensors`; the model's own weights need none."""
        if weight_version != BASE_WEIGHTS:
            await self._load(folder / "model.safetensors", weight_version, timeout_s=timeout_s)
        await self.rename_weights(weight_version, timeout_s=timeout_s)
        self._serving = weight_version
        self._running.setdefault(weight_version, set())
        await self._retire(timeout_s=timeout_s)
        return WeightUpdate(pause_s=0.0)

    async def _load(self, file: Path, label: str, *, timeout_s: float) -> None:
        target = self._folder / label
        try:
            await asyncio.to_thread(write_peft_folder, file, target)
        except InvalidAdapter as error:
            raise EngineRefused(str(error)) from error
        try:
            await self._post("/load_lora_adapter", {"lora_name": label, "lora_path": str(target)}, timeout_s=timeout_s)
        except EngineRefused as error:
            # By an update that was cut short after it; what has this label is always the same.
            if "already loaded" not in str(error):
                raise

    async def _retire(self, *, timeout_s: float) -> None:
        """Unload what no request has any more."""
        older = [label for label in self._running if label != self._serving]
        for label in older:
            if not self._running[label]:
                del self._running[label]
                if label != BASE_WEIGHTS:
                    await self._unload(label, timeout_s=timeout_s)
        in_use = [label for label in older if label in self._running]
        for label in in_use[: max(0, len(in_use) - _MOST_OLDER)]:
            _log.info("old_requests_aborted", weights=label, requests=len(self._running[label]))
            for request_id in tuple(self._running[label]):
                await self.abort(request_id, timeout_s=timeout_s)

    async def _unload(self, label: str, *, timeout_s: float) -> None:
        try:
            await self._post("/unload_lora_adapter", {"lora_name": label}, timeout_s=timeout_s)
        except EngineRefused as error:
            _log.warning("adapter_not_unloaded", weights=label, reason=str(error))
        await asyncio.to_thread(shutil.rmtree, self._folder / label, ignore_errors=True)


def _labelled(part: Generated, label: str) -> Generated:
    """All of it sampled with one adapter."""
    tokens = len(part.token_ids)
    runs = (WeightRun(weight_version=label, length=tokens),) if tokens else ()
    return replace(part, weight_version=label, weight_runs=runs)
