"""A model by hub name, by object storage and by folder is the same model: fetched once, checked, and told what to do
about when it cannot be had.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from tests.support.dataflow.jobs import job
from tests.support.dataflow.prompt_sources import write_jsonl
from tests.support.hub_mirror import HubMirror, hub_mirror
from trimtab.api.source_uri import HubSource, ObjectSource
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings, PodSettings, environment_for
from trimtab.fabric.sources.__main__ import FetchSettings
from trimtab.fabric.sources.errors import SourceAway, SourceRefused
from trimtab.fabric.sources.fetching import Fetcher
from trimtab.fabric.sources.hub import HubAccess
from trimtab.fabric.sources.wants import Want, job_wants, located, trainer_wants

MODEL = "models/team/small"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, torch.Tensor]:
    """Of a model in a folder of its own."""
    folder = tmp_path / "model"
    folder.mkdir()
    made = {"w": torch.arange(64, dtype=torch.float32).reshape(8, 8), "b": torch.ones(8, dtype=torch.bfloat16)}
    save_file(made, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    (folder / "onnx").mkdir()
    (folder / "onnx/config.json").write_text("{}")
    return made


@pytest.fixture
def mirror(weights: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubMirror]:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with hub_mirror() as served:
        served.repositories[MODEL] = tmp_path / "model"
        yield served


def _fetcher(mirror: HubMirror | str, store: ObjectStoreSettings, cache: Path, *, token: str | None = None) -> Fetcher:
    return Fetcher(
        cache=cache,
        hub=HubAccess(endpoint=mirror if isinstance(mirror, str) else mirror.url, token=token),
        object_store=store,
        attempts=2,
        backoff=FullJitter(base_s=0.01, cap_s=0.01),
    )


def _wants(uri: str) -> list[Want]:
    policy = job(policies=[{"name": "solver", "model": {"uri": uri}}]).spec.policies[0]
    return trainer_wants(policy)


def _same(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    found = load_file(folder / "model.safetensors")
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert (folder / "tokenizer.json").is_file()
    assert not (folder / "pytorch_model.bin").exists(), "nothing pickled is fetched"
    assert not (folder / "onnx").exists()


async def test_the_same_weights_from_a_hub_from_objects_and_from_a_folder(
    mirror: HubMirror, object_store_settings: ObjectStoreSettings, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    prefix = f"models/{uuid.uuid4().hex}"
    async with ObjectStore(object_store_settings.model_copy(update={"prefix": prefix})) as store:
        for file in (tmp_path / "model").iterdir():
            if file.is_file():
                await store.put(file.name, file.read_bytes())
    hub, objects = "hf://team/small@v1", f"s3://{object_store_settings.bucket}/{prefix}"
    fetcher = _fetcher(mirror, object_store_settings, tmp_path / "cache")
    places = tmp_path / "places"
    for uri in (hub, objects):
        await fetcher.fetch_all(_wants(uri), places)
        here = located(job(policies=[{"name": "solver", "model": {"uri": uri}}]), str(places))
        _same(Path(here.spec.policies[0].weights.uri), weights)
    by_path = job(policies=[{"name": "solver", "model": {"uri": "/models/small"}}])
    assert located(by_path, str(places)) == by_path
    assert job_wants(by_path.spec) == []


async def test_what_is_here_is_not_fetched_again_nor_by_another_process_meanwhile(
    mirror: HubMirror, object_store_settings: ObjectStoreSettings, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """As two pods of a node with one volume."""
    pods = [_fetcher(mirror, object_store_settings, tmp_path / "volume") for _ in range(2)]
    wants = _wants(f"hf://team/small@{mirror.commit(MODEL)}")
    await asyncio.gather(*(pod.fetch_all(wants, tmp_path / "volume/places") for pod in pods))
    assert mirror.sent == {"model.safetensors": 1, "config.json": 1, "tokenizer.json": 1}
    asked = mirror.asked
    away = _fetcher(NOWHERE, object_store_settings, tmp_path / "volume")
    await away.fetch_all(wants, tmp_path / "elsewhere")
    assert mirror.asked == asked
    (place,) = (tmp_path / "elsewhere").iterdir()
    _same(place, weights)


async def test_a_branch_that_moves_does_not_move_under_a_job(
    mirror: HubMirror, object_store_settings: ObjectStoreSettings, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    fetcher = _fetcher(mirror, object_store_settings, tmp_path / "cache")
    wants, places = _wants("hf://team/small@main"), tmp_path / "places"
    await fetcher.fetch_all(wants, places)
    save_file({name: tensor + 1 for name, tensor in weights.items()}, tmp_path / "model/model.safetensors")
    await fetcher.fetch_all(wants, places)
    (place,) = places.iterdir()
    _same(place, weights)
    await fetcher.fetch_all(wants, tmp_path / "fresh")
    (place,) = (tmp_path / "fresh").iterdir()
    _same(place, {name: tensor + 1 for name, tensor in weights.items()})


async def test_a_file_that_arrives_damaged_is_fetched_again(
    mirror: HubMirror, object_store_settings: ObjectStoreSettings, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    mirror.damaged |= {"model.safetensors", "config.json"}
    fetcher = Fetcher(
        cache=tmp_path / "cache",
        hub=HubAccess(endpoint=mirror.url),
        object_store=object_store_settings,
        attempts=3,
        backoff=FullJitter(base_s=0.01, cap_s=0.01),
    )
    await fetcher.fetch_all(_wants("hf://team/small@v1"), tmp_path / "places")
    (place,) = (tmp_path / "places").iterdir()
    _same(place, weights)
    assert json.loads((place / "config.json").read_text()) == {"model_type": "llama"}
    assert (mirror.sent["model.safetensors"], mirror.sent["config.json"]) == (2, 2)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        (
            "hf://team/other@v1",
            "has no such model that we may see: correct its name or, if it is private, give a token",
        ),
        ("hf://team/small@v9", "has the repository, but not this revision"),
    ],
)
async def test_what_the_hub_does_not_have_is_told(
    uri: str, says: str, mirror: HubMirror, object_store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    fetcher = _fetcher(mirror, object_store_settings, tmp_path / "cache")
    with pytest.raises(SourceRefused) as refused:
        await fetcher.fetch_all(_wants(uri), tmp_path / "places")
    assert f"policies[solver].model.uri: {uri}: " in str(refused.value)
    assert says in str(refused.value)


async def test_a_gated_model_needs_a_token_which_is_not_told(
    mirror: HubMirror, object_store_settings: ObjectStoreSettings, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    mirror.token = "hf_right"
    wants, places = _wants("hf://team/small@v1"), tmp_path / "places"
    with pytest.raises(SourceRefused, match=r"HF_TOKEN or, in a cluster, spec.hub.tokenSecret") as refused:
        await _fetcher(mirror, object_store_settings, tmp_path / "cache", token="hf_wrong").fetch_all(wants, places)
    assert "hf_wrong" not in str(refused.value)
    fetcher = _fetcher(mirror, object_store_settings, tmp_path / "cache", token="hf_right")
    assert "hf_right" not in repr(fetcher)
    await fetcher.fetch_all(wants, places)
    (place,) = places.iterdir()
    _same(place, weights)


async def test_without_a_network_it_says_what_to_do(
    mirror: HubMirror, object_store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    with pytest.raises(SourceAway) as away:
        await _fetcher(NOWHERE, object_store_settings, tmp_path / "cache").fetch_all(
            _wants("hf://team/small@v1"), tmp_path / "places"
        )
    for advice in ("HF_ENDPOINT", "hf download team/small --revision v1", "HF_HOME", "name a folder or s3://"):
        assert advice in str(away.value)
    nothing = f"s3://{object_store_settings.bucket}/models/{uuid.uuid4().hex}"
    with pytest.raises(SourceRefused, match=r"policies\[solver\].model.uri: s3://.*no files of a model"):
        await _fetcher(mirror, object_store_settings, tmp_path / "cache").fetch_all(
            _wants(nothing), tmp_path / "places"
        )
    gone = object_store_settings.model_copy(update={"endpoint_url": NOWHERE})
    with pytest.raises(SourceAway, match="the store gives no answer"):
        await _fetcher(mirror, gone, tmp_path / "cache").fetch_all(_wants(nothing), tmp_path / "places")


async def test_what_the_init_container_of_a_dataflow_pod_fetches(
    mirror: HubMirror, object_store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    """The program as a pod runs it: prompts of a hub's dataset, and of the model only what counts tokens."""
    write_jsonl(tmp_path / "set/math/train.jsonl", ["1 + 1"])
    write_jsonl(tmp_path / "set/math/deep/never.jsonl", ["?"])
    mirror.repositories["datasets/team/sums"] = tmp_path / "set"
    desired = job(
        hub={"endpoint": mirror.url},
        policies=[{"name": "solver", "model": {"uri": "hf://team/small@v1"}}],
        data={
            "prompts": [{"name": "train", "jsonl": {"uri": "hf://datasets/team/sums@main/math"}}],
            "maxPromptTokens": 64,
        },
    )
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(desired.model_dump(mode="json", exclude_none=True)))
    settings = {
        **environment_for(
            FetchSettings(
                pod=PodSettings(namespace="n", job="job", role="dataflow", name="job-dataflow-0"),
                nats=NatsSettings(servers=("nats://127.0.0.1:9",)),
                object_store=object_store_settings,
                job_file=tmp_path / "job.yaml",
                fetched=tmp_path / "sources/places",
            )
        ),
        "HF_HOME": str(tmp_path / "sources/hub"),
    }
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "trimtab.fabric.sources"],
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | settings,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    here = located(desired, str(tmp_path / "sources/places"))
    model = Path(here.spec.policies[0].weights.uri)
    assert sorted(file.name for file in model.iterdir()) == ["config.json", "tokenizer.json"]
    (prompts,) = here.spec.data.prompts
    assert prompts.jsonl is not None
    assert [file.name for file in Path(prompts.jsonl.uri).iterdir()] == ["train.jsonl"]
    assert mirror.sent == {"config.json": 1, "tokenizer.json": 1, "math/train.jsonl": 1}


def test_wants_name_their_sources() -> None:
    (want,) = _wants("hf://team/small@v1")
    assert want.source == HubSource(kind="model", repository="team/small", revision="v1")
    (want,) = _wants("s3://models/a/b")
    assert want.source == ObjectSource(bucket="models", prefix="a/b")
