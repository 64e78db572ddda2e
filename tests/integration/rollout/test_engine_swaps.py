"""Weights that change in the midst of generations, whole and sparse, on the built-in engine as a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

from tests.support.polling import eventually, patiently
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.sparse_changes import sparse_changes_between
from trimtab.rollout.engines.builtin.sparse_update import write_sparse_update

PROMPT = [5, 6, 7, 8]
COUNT = 600


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`0`, and `1` in which some elements of every tensor are others. Stored in bf16, tied."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("swaps")
    config = LlamaConfig(
        vocab_size=61, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    for name in ("0", "1"):
        LlamaForCausalLM(config).bfloat16().save_pretrained(root / name)
    changed = load_file(root / "0" / "model.safetensors")
    for tensor in changed.values():
        where = torch.rand(tensor.shape) < 0.1
        tensor[where] += torch.randn(int(where.sum())).bfloat16() * 0.3
    save_file(changed, root / "1" / "model.safetensors", metadata={"format": "pt"})
    return root


@pytest.fixture(scope="module")
def process(folders: Path) -> Iterator[EngineProcess]:
    process = EngineProcess(folders / "0", folders)
    process.start()
    yield process
    process.kill()


@pytest.fixture
async def http(process: EngineProcess, folders: Path) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=300.0)
    async with aiohttp.ClientSession(base_url=process.url, timeout=timeout) as session:

        async def healthy() -> bool:
            try:
                async with session.get("/health") as response:
                    return response.status == 200
            except aiohttp.ClientConnectionError:
                return False

        await eventually(healthy, timeout_s=60.0)
        await post(session, "/update_weights_from_disk", {"model_path": str(folders / "0"), "weight_version": "0"})
        yield session


async def post(http: aiohttp.ClientSession, path: str, body: dict[str, Any], *, status: int = 200) -> dict[str, Any]:
    async with http.post(path, json=body) as response:
        answer = await response.json()
        assert response.status == status, answer
        return dict(answer)


async def checksum(http: aiohttp.ClientSession) -> str:
    return str((await post(http, "/weights_checker", {"action": "checksum"}))["per_engine_checksum"])


async def test_a_sparse_update_makes_the_very_weights_of_the_whole_file(
    http: aiohttp.ClientSession, folders: Path, tmp_path: Path
) -> None:
    first = await checksum(http)
    await post(http, "/update_weights_from_disk", {"model_path": str(folders / "1"), "weight_version": "1"})
    whole = await checksum(http)
    assert whole != first
    await post(http, "/update_weights_from_disk", {"model_path": str(folders / "0"), "weight_version": "0"})
    assert await checksum(http) == first
    update = tmp_path / "update.safetensors"
    write_sparse_update(update, sparse_changes_between(folders / "0", folders / "1"), base_version="0")
    body = {"model_path": str(update), "load_format": "sparse", "weight_version": "1"}
    await post(http, "/update_weights_from_disk", body)
    assert await checksum(http) == whole
    # It leads from 0 to 1 and from nowhere else.
    refused = await post(http, "/update_weights_from_disk", body, status=400)
    assert "changes version 0, and 1 is served" in refused["message"]
    assert await checksum(http) == whole


@pytest.mark.parametrize("sparse", [False, True], ids=["whole", "sparse"])
async def test_a_swap_in_the_middle_of_a_generation_stamps_the_right_spans(
    http: aiohttp.ClientSession, folders: Path, tmp_path: Path, sparse: bool
) -> None:
    """Logprobs tell: before the swap those of the old weights, after it those of the new on the old keys and values."""
    body: dict[str, Any] = {"model_path": str(folders / "1"), "weight_version": "1"}
    if sparse:
        update = tmp_path / "update.safetensors"
        write_sparse_update(update, sparse_changes_between(folders / "0", folders / "1"), base_version="0")
        body |= {"model_path": str(update), "load_format": "sparse"}
    request = await paused_in_the_middle(http)
    await post(http, "/update_weights_from_disk", body)
    await post(http, "/continue_generation", {})
    answer = await request
    meta = answer["meta_info"]
    spans = meta["weight_versions"]
    swap = spans[0]["end"]
    assert spans == [{"version": "0", "start": 0, "end": swap}, {"version": "1", "start": swap, "end": COUNT}]
    assert 20 <= swap < COUNT
    assert meta["weight_version"] == "1"
    expected = logprobs_across(folders, answer["output_ids"], swap)
    assert [pair[0] for pair in meta["output_token_logprobs"]] == pytest.approx(expected, abs=1e-4)


async def paused_in_the_middle(http: aiohttp.ClientSession) -> asyncio.Task[dict[str, Any]]:
    """A request that has twenty tokens or more and not all, in an engine that waits. One that was too quick for us is
    repeated."""
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": COUNT}, "return_logprob": True}
    async with patiently(60.0):
        while True:
            before = await generated(http)
            request = asyncio.create_task(post(http, "/generate", body))
            while await generated(http) < before + 20:
                pass
            await post(http, "/pause_generation", {"mode": "in_place"})
            if await generated(http) < before + COUNT:
                return request
            await post(http, "/continue_generation", {})
            await request


async def generated(http: aiohttp.ClientSession) -> int:
    async with http.get("/metrics") as response:
        (line,) = [line for line in (await response.text()).splitlines() if line.startswith("sglang:generation_tokens")]
        return int(line.split()[1])


def logprobs_across(folders: Path, output: list[int], swap: int) -> list[float]:
    """By transformers: the last token before the swap is the first that the new weights read."""
    old: Any = AutoModelForCausalLM.from_pretrained(folders / "0", dtype=torch.float32)
    new: Any = AutoModelForCausalLM.from_pretrained(folders / "1", dtype=torch.float32)
    cache = DynamicCache(config=old.config)
    tokens = torch.tensor([PROMPT + output])
    at = len(PROMPT) + swap - 1
    with torch.inference_mode():
        first = old(tokens[:, :at], past_key_values=cache).logits[0]
        second = new(tokens[:, at:-1], past_key_values=cache).logits[0]
    logprobs = torch.log_softmax(torch.cat([first, second]), dim=-1)
    taken = logprobs.gather(-1, tokens[0, 1:, None])[len(PROMPT) - 1 :, 0]
    return [float(logprob) for logprob in taken]
