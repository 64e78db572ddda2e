"""Two versions of a model, the ways from one to the other, and what a server says to tell which it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.contract.engine import Engine, logprobs_of, tokens_of
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.sglang.sparse_update import SglangSparseFile

D = 60.0
_CHANGED_SHARE = 0.01
_PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


def make_changed(folder: Path, changed: Path) -> None:
    """A copy in which a hundredth of every tensor's elements are others."""
    changed.mkdir(parents=True)
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (changed / file.name).write_bytes(file.read_bytes())
    generator = torch.Generator().manual_seed(1)
    tensors = load_file(folder / "model.safetensors")
    for tensor in tensors.values():
        chosen = torch.rand(tensor.shape, generator=generator) < _CHANGED_SHARE
        chosen.view(-1)[-1] = True  # also of the smallest tensor, and where its neighbour in a fused one begins
        tensor[chosen] = tensor[chosen] * 1.5 + 0.01
    save_file(tensors, changed / "model.safetensors", metadata={"format": "pt"})


async def load_whole(engine: Engine, folder: Path, *, version: str) -> None:
    # SGLang dies if it is to flush in the same breath and a request has only just ended.
    body = {"model_path": str(folder), "weight_version": version, "flush_cache": False}
    status, answer = await engine.post("/update_weights_from_disk", body)
    assert (status, answer["success"]) == (200, True), answer


async def update_sparsely(url: str, file: Path, *, weight_version: str) -> None:
    """As a worker does it. Raises SparseUpdateRefused."""
    async with EngineClient(url, request_timeout_s=D) as client:
        await client.pause("abort", timeout_s=D)
        try:
            launched = await client.server_info(timeout_s=D)
            await SglangSparseFile(file).give(client, launched=launched, weight_version=weight_version, timeout_s=D)
        finally:
            await client.resume(timeout_s=D)


async def said(engine: Engine) -> tuple[list[int], list[float], list[Any], str]:
    """Greedy tokens with logprobs, those of the prompt too, and the version, computed from an empty cache."""
    assert (await engine.get("/flush_cache?timeout=30"))[0] == 200
    body = {
        "input_ids": _PROMPT,
        "sampling_params": {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    status, answer = await engine.post("/generate", body)
    assert status == 200, answer
    meta = answer["meta_info"]
    return tokens_of(answer), logprobs_of(answer), meta["input_token_logprobs"], meta["weight_version"]
