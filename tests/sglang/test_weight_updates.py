"""New weights in a running SGLang: a sparse update makes the model that the whole checkpoint makes, to the last bit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from examples.quickstart.make import CHARACTERS, make_tokenizer
from tests.support.contract.engine import Engine
from tests.support.rollout.sparse_changes import sparse_changes_between
from tests.support.sglang.launched import LaunchedSGLang
from tests.support.sglang.updates import load_whole, make_changed, said, update_sparsely
from trimtab.rollout.engines.builtin.sparse_update import write_sparse_update
from trimtab.rollout.engines.sglang.sparse_update import SparseUpdateRefused

_SMALL: dict[str, Any] = {
    "vocab_size": len(CHARACTERS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}


def _make_qwen(folder: Path, family: str, *, intermediate_size: int = 96) -> None:
    """Qwen2 has biases, Qwen3 norms of queries and keys and heads that are wider than its hidden size shares out."""
    torch.manual_seed(0)
    sizes = _SMALL | {"intermediate_size": intermediate_size}
    if family == "qwen2":
        model: torch.nn.Module = Qwen2ForCausalLM(Qwen2Config(**sizes))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=32))
    model.to(torch.bfloat16).save_pretrained(folder)  # type: ignore[operator]
    make_tokenizer(folder)


async def _assert_sparse_is_whole(engine: Engine, url: str, folder: Path, *, scratch: Path) -> None:
    changed, update = scratch / "changed", scratch / "update.safetensors"
    make_changed(folder, changed)
    write_sparse_update(update, sparse_changes_between(folder, changed), base_version="0")
    await load_whole(engine, folder, version="0")
    first = await said(engine)
    await load_whole(engine, changed, version="1")
    whole = await said(engine)
    assert whole[1] != first[1]
    await load_whole(engine, folder, version="0")
    assert await said(engine) == first
    await update_sparsely(url, update, weight_version="1")
    assert await said(engine) == whole
    assert (await engine.get("/model_info"))[1]["weight_version"] == "1"


async def test_a_sparse_update_makes_the_model_of_the_whole_checkpoint(
    engine: Engine, served: str, smollm2_folder: Path, tmp_path: Path
) -> None:
    await _assert_sparse_is_whole(engine, served, smollm2_folder, scratch=tmp_path)


async def test_what_does_not_fit_is_refused_and_sglang_goes_on_with_the_weights_it_has(
    engine: Engine, served: str, smollm2_folder: Path, tmp_path: Path
) -> None:
    await load_whole(engine, smollm2_folder, version="0")
    first = await said(engine)
    good = {"model.norm.weight#indices": torch.tensor([0]), "model.norm.weight#values": torch.tensor([9.0])}
    bad = {
        "model.layers.0.self_attn.k_proj.weight": (192 * 576, "outside its 110592 elements"),
        "model.layers.30.mlp.up_proj.weight": (0, "has no model.layers.30"),
        "lm_head.weight": (0, "is the embedding"),
    }
    for name, (index, complaint) in bad.items():
        file = tmp_path / "bad.safetensors"
        change = {f"{name}#indices": torch.tensor([index]), f"{name}#values": torch.tensor([9.0])}
        save_file(good | change, file, metadata={"format": "trimtab-sparse-1", "base_version": "0"})
        with pytest.raises(SparseUpdateRefused, match=complaint):
            await update_sparsely(served, file, weight_version="1")
    assert await said(engine) == first


async def test_an_update_of_another_version_is_refused(
    engine: Engine, served: str, smollm2_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "update.safetensors"
    change = {"model.norm.weight#indices": torch.tensor([0]), "model.norm.weight#values": torch.tensor([9.0])}
    save_file(change, file, metadata={"format": "trimtab-sparse-1", "base_version": "4"})
    await load_whole(engine, smollm2_folder, version="5")
    before = await said(engine)
    with pytest.raises(SparseUpdateRefused, match="changes version 4, served is 5"):
        await update_sparsely(served, file, weight_version="6")
    assert await said(engine) == before


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
async def test_sparse_updates_know_the_layout_of_the_family(family: str, interpreter: Path, tmp_path: Path) -> None:
    _make_qwen(tmp_path / "model", family)
    launched = LaunchedSGLang(tmp_path / "model", interpreter=interpreter, folder=tmp_path)
    try:
        await launched.wait_ready()
        timeout = aiohttp.ClientTimeout(total=100.0)
        async with aiohttp.ClientSession(base_url=launched.url, timeout=timeout) as session:
            await _assert_sparse_is_whole(Engine(session), launched.url, tmp_path / "model", scratch=tmp_path)
    finally:
        launched.stop()


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
async def test_two_ranks_each_write_their_part_of_a_sparse_update(
    family: str, interpreter: Path, tmp_path: Path
) -> None:
    """SGLang on a CPU pads what its ranks cannot share evenly in multiples of 32: not here."""
    _make_qwen(tmp_path / "model", family, intermediate_size=128)
    async with _two_ranks(tmp_path, interpreter) as launched, _session(launched) as session:
        await _assert_sparse_is_whole(Engine(session), launched.url, tmp_path / "model", scratch=tmp_path)


async def test_ranks_that_hold_padding_refuse_a_sparse_update_and_go_on(interpreter: Path, tmp_path: Path) -> None:
    _make_qwen(tmp_path / "model", "qwen2", intermediate_size=96)
    make_changed(tmp_path / "model", tmp_path / "changed")
    update = tmp_path / "update.safetensors"
    write_sparse_update(update, sparse_changes_between(tmp_path / "model", tmp_path / "changed"), base_version="0")
    async with _two_ranks(tmp_path, interpreter) as launched, _session(launched) as session:
        before = await said(Engine(session))
        with pytest.raises(SparseUpdateRefused, match="has padded intermediate_size"):
            await update_sparsely(launched.url, update, weight_version="1")
        assert await said(Engine(session)) == before


@asynccontextmanager
async def _two_ranks(folder: Path, interpreter: Path) -> AsyncIterator[LaunchedSGLang]:
    launched = LaunchedSGLang(
        folder / "model",
        interpreter=interpreter,
        folder=folder,
        arguments=("--tp-size=2",),
        # It wants a NUMA node for each rank or to be told their cores, and takes NCCL where it is installed.
        environment={"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "SGLANG_NCCL_SO_PATH": "none"},
    )
    try:
        await launched.wait_ready()
        yield launched
    finally:
        launched.stop()


def _session(launched: LaunchedSGLang) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(base_url=launched.url, timeout=aiohttp.ClientTimeout(total=100.0))
