"""Where policies[].trainer.checkpoint.uri leads, and how it is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.support.trainer.samples import policy
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings, PodSettings, Settings
from trimtab.trainer.checkpoints.registry import open_storage
from trimtab.trainer.checkpoints.storage import CheckpointStorage

NAME = "checkpoints/000000000001-000000000001/index-x.json"


class Opener:
    def __init__(self, settings: Settings, store: ObjectStore, folder: Path, stack: AsyncExitStack) -> None:
        self.settings = settings
        self._store = store
        self._folder = folder
        self._stack = stack

    async def open(self, uri: str | None) -> CheckpointStorage:
        return await open_storage(
            policy(checkpoint={"uri": uri} if uri else {}),
            self.settings,
            store=self._store,
            job_folder=self._folder,
            stack=self._stack,
        )


@pytest.fixture
async def opener(store: ObjectStore, store_settings: ObjectStoreSettings, tmp_path: Path) -> AsyncIterator[Opener]:
    settings = Settings(
        pod=PodSettings(namespace="n", job="j", role="trainer", name="t", policy="solver"),
        nats=NatsSettings(servers=("nats://unused",)),
        object_store=store_settings,
    )
    async with AsyncExitStack() as stack:
        yield Opener(settings, store, tmp_path, stack)


async def test_without_one_they_are_in_the_jobs_store(opener: Opener, store: ObjectStore) -> None:
    storage = await opener.open(None)
    await storage.put(NAME, b"x")
    assert (await store.get(f"checkpoints/solver/{NAME}", max_bytes=10)).body == b"x"


async def test_another_prefix_with_the_jobs_credentials(opener: Opener, store_settings: ObjectStoreSettings) -> None:
    storage = await opener.open(f"s3://{store_settings.bucket}/elsewhere/")
    await storage.put(NAME, b"x")
    whole = store_settings.model_copy(update={"prefix": ""})
    async with ObjectStore(whole) as store:
        assert (await store.get(f"elsewhere/n/j/solver/{NAME}", max_bytes=10)).body == b"x"


@pytest.mark.parametrize("absolute", [False, True])
async def test_a_folder_beside_the_manifest_or_anywhere(opener: Opener, tmp_path: Path, absolute: bool) -> None:
    storage = await opener.open(str(tmp_path / "kept") if absolute else "kept")
    await storage.put(NAME, b"x")
    assert (tmp_path / "kept" / "n" / "j" / "solver" / NAME).read_bytes() == b"x"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("gs://bucket/x", "neither s3://bucket/prefix nor a folder"),
        ("s3://", "neither"),
        ("s3://b?x", "neither"),
        ("a-file/below", "every rank can write to"),
        ("/proc/nowhere", "every rank can write to"),
    ],
)
async def test_what_cannot_be_is_refused_by_the_fields_name(
    opener: Opener, tmp_path: Path, uri: str, reason: str
) -> None:
    (tmp_path / "a-file").touch()
    with pytest.raises(JobMisconfigured, match=reason) as refused:
        await opener.open(uri)
    assert f"policies[solver].trainer.checkpoint.uri: {uri}" in str(refused.value)


async def test_a_bucket_that_the_jobs_credentials_do_not_open_is_refused(
    opener: Opener, store_settings: ObjectStoreSettings
) -> None:
    wrong = opener.settings.object_store.model_copy(update={"secret_access_key": SecretStr("wrong")})
    opener.settings = opener.settings.model_copy(update={"object_store": wrong})
    with pytest.raises(JobMisconfigured, match="let the job's credentials") as refused:
        await opener.open(f"s3://{store_settings.bucket}/x")
    assert "checkpoint.uri" in str(refused.value)
    assert "wrong" not in str(refused.value)


async def test_a_volume_without_links_is_refused(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(self))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(JobMisconfigured, match="on a volume with hard links"):
        await opener.open("kept")
