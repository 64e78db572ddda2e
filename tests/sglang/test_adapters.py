"""Adapters in a real SGLang: it computes what was published, requests keep the version that they began with, and a job
learns.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from examples.quickstart.make import make_model, make_tokenizer
from examples.streams import figures, read_streams
from tests.support.polling import eventually
from tests.support.quickstart_job import make_quickstart, trained_steps
from tests.support.rollout.adapter_files import make_adapters
from tests.support.sglang.launched import LaunchedSGLang
from trimtab.api.lora import ALL_TARGETS
from trimtab.fabric.bus.topology import JobTopology
from trimtab.rollout.engines.contract import BASE_WEIGHTS, EngineUnavailable, Generated, SamplingSettings
from trimtab.rollout.engines.sglang.adapters import AdapterClient
from trimtab.weights.merging import merge_into

D = 150.0
RANK = 8
PROMPT = [1, 2, 3, 4, 5, 6]
LONG = SamplingSettings(max_new_tokens=400, temperature=1.0, ignore_eos=True)
SHORT = SamplingSettings(max_new_tokens=6, temperature=1.0, ignore_eos=True)
_STEPS = 30
_AGREED = 1e-4
_RUN_S = 1700.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted") / "model"
    make_tokenizer(folder)
    make_model(folder, seed=0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    return folder


@pytest.fixture(scope="module")
def launched(model: Path, interpreter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedSGLang]:
    launched = LaunchedSGLang(
        model,
        interpreter=interpreter,
        folder=tmp_path_factory.mktemp("launched"),
        options=(f"--lora-rank={RANK}", f"--lora-targets={','.join(ALL_TARGETS)}"),
    )
    yield launched
    launched.stop()  # its scheduler never rests


@pytest.fixture
async def client(launched: LaunchedSGLang, tmp_path: Path) -> AsyncIterator[AdapterClient]:
    await launched.wait_ready()
    async with AdapterClient(launched.url, request_timeout_s=D, folder=tmp_path / "loaded") as opened:
        await opened.update_weights_from_disk(tmp_path, weight_version=BASE_WEIGHTS, timeout_s=D)
        yield opened


async def sample(client: AdapterClient, settings: SamplingSettings, name: str) -> Generated:
    return await client.generate(PROMPT, settings, request_id=name, weight_version="not asked")


def expected(folder: Path, tokens: tuple[int, ...]) -> torch.Tensor:
    """Logprobs of the tokens after the prompt, by the merged model."""
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = merged(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1].float()
    return torch.log_softmax(logits, dim=-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]


async def loaded_in(launched: LaunchedSGLang, *, epoch: int) -> set[str]:
    """Each test has an epoch of its own: the server may still have adapters of others."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=D)) as session,
        session.get(launched.url + "/v1/models") as response,
    ):
        return {entry["id"] for entry in (await response.json())["data"] if entry["id"].startswith(f"{epoch}.")}


async def test_it_computes_the_model_with_the_adapters_added(
    client: AdapterClient, launched: LaunchedSGLang, model: Path, tmp_path: Path
) -> None:
    plain = await sample(client, SHORT, "plain")
    torch.testing.assert_close(torch.tensor(plain.logprobs), expected(model, plain.token_ids), rtol=0, atol=_AGREED)
    for version, size in (("1.1", 0.0), ("1.2", 0.2), ("1.3", 0.2)):
        given = make_adapters(model, tmp_path / version, rank=RANK, seed=int(version[-1]), size=size)
        merge_into(model, given / "model.safetensors", tmp_path / f"merged-{version}")
        await client.update_weights_from_disk(given, weight_version=version, timeout_s=D)
        assert (await client.model_info(timeout_s=D)).weight_version == version
        part = await sample(client, SHORT, version)
        assert [(run.weight_version, run.length) for run in part.weight_runs or ()] == [(version, 6)]
        wanted = expected(tmp_path / f"merged-{version}", part.token_ids)
        torch.testing.assert_close(torch.tensor(part.logprobs), wanted, rtol=0, atol=_AGREED)
        if size:
            assert (wanted - expected(model, part.token_ids)).abs().max() > 0.05, "the adapters say nothing"
        assert await loaded_in(launched, epoch=1) == {version}
        assert [folder.name for folder in (tmp_path / "loaded").iterdir()] == [version]


async def test_a_request_keeps_its_version_and_the_next_has_the_new_one(
    client: AdapterClient, launched: LaunchedSGLang, model: Path, tmp_path: Path
) -> None:
    for version in ("2.1", "2.2"):
        make_adapters(model, tmp_path / version, rank=RANK, seed=int(version[-1]))
        merge_into(model, tmp_path / version / "model.safetensors", tmp_path / f"merged-{version}")
    await client.update_weights_from_disk(tmp_path / "2.1", weight_version="2.1", timeout_s=D)
    under_way = asyncio.create_task(sample(client, LONG, "long"))
    await eventually(partial(_runs, client), timeout_s=D)
    update = await client.update_weights_from_disk(tmp_path / "2.2", weight_version="2.2", timeout_s=D)
    assert update.pause_s == 0.0
    assert not under_way.done(), "it was to be under way when the version came"
    after = await sample(client, SHORT, "after")
    assert {run.weight_version for run in after.weight_runs or ()} == {"2.2"}
    assert await loaded_in(launched, epoch=2) == {"2.1", "2.2"}
    part = await under_way
    assert [(run.weight_version, run.length) for run in part.weight_runs or ()] == [("2.1", LONG.max_new_tokens)]
    wanted = expected(tmp_path / "merged-2.1", part.token_ids)
    torch.testing.assert_close(torch.tensor(part.logprobs), wanted, rtol=0, atol=_AGREED)
    await client.update_weights_from_disk(tmp_path / "2.2", weight_version="2.2", timeout_s=D)
    assert await loaded_in(launched, epoch=2) == {"2.2"}


async def _runs(client: AdapterClient, *, at_least: int = 1) -> bool:
    return (await client.load(timeout_s=D)).running >= at_least


async def test_requests_of_too_many_versions_ago_go_on_with_the_newest(
    client: AdapterClient, launched: LaunchedSGLang, model: Path, tmp_path: Path
) -> None:
    under_way = []
    for number in range(1, 6):
        make_adapters(model, tmp_path / f"3.{number}", rank=RANK, seed=number)
        await client.update_weights_from_disk(tmp_path / f"3.{number}", weight_version=f"3.{number}", timeout_s=D)
        under_way.append(asyncio.create_task(sample(client, LONG, f"long-{number}")))
        await eventually(partial(_runs, client, at_least=min(number, 4)), timeout_s=D)  # the fifth ends the first
    oldest = await under_way[0]
    assert oldest.finish == "abort"
    assert 0 < len(oldest.token_ids) < LONG.max_new_tokens
    assert {run.weight_version for run in oldest.weight_runs or ()} == {"3.1"}
    others = await asyncio.gather(*under_way[1:])
    assert all(part.finish == "length" for part in others)
    versions = [{run.weight_version for run in part.weight_runs or ()} for part in others]
    assert versions == [{f"3.{number}"} for number in range(2, 6)]
    # The next one finds them without requests.
    await client.update_weights_from_disk(tmp_path / "3.5", weight_version="3.5", timeout_s=D)
    assert await loaded_in(launched, epoch=3) == {"3.5"}


async def test_an_engine_that_has_lost_its_adapters_is_one_that_is_lost(
    client: AdapterClient, launched: LaunchedSGLang, model: Path, tmp_path: Path
) -> None:
    make_adapters(model, tmp_path / "4.1", rank=RANK, seed=1)
    await client.update_weights_from_disk(tmp_path / "4.1", weight_version="4.1", timeout_s=D)
    client._serving = "4.2"
    with pytest.raises(EngineUnavailable, match="4.2"):
        await sample(client, SHORT, "lost")
    # Asked, it says what it has.
    assert (await client.model_info(timeout_s=D)).weight_version == "4.1"
    assert (await sample(client, SHORT, "found")).weight_version == "4.1"


@pytest.mark.timeout(_RUN_S + 60)
def test_a_job_learns_with_adapters_on_a_launched_sglang(interpreter: Path, tmp_path: Path) -> None:
    file = make_quickstart(tmp_path, name="adapts", max_steps=_STEPS)
    manifest = yaml.safe_load(file.read_text())
    (policy,), (pool,) = manifest["spec"]["policies"], manifest["spec"]["pools"]
    policy["lora"] = {"rank": 16}
    policy["algorithm"] |= {"optimizer": {"learningRate": 4.0e-3}}
    pool["engine"] = {"name": "sglang", "interpreter": str(interpreter), "startupTimeoutSeconds": 1200}
    file.write_text(yaml.safe_dump(manifest))
    mismatches = [step["logprob_mismatch"] for step in trained_steps(file, timeout_s=_RUN_S)]
    assert len(mismatches) == _STEPS
    assert max(mismatch for mismatch in mismatches if mismatch is not None) < _AGREED
    streams = asyncio.run(read_streams(tmp_path / ".trimtab" / "adapts", JobTopology("default", "adapts")))
    measured = figures(streams)
    assert measured["first_reward"] < 0.15
    assert measured["last_reward"] > 0.3
    assert len({header.newest_version for header in streams.headers}) > _STEPS / 2
