"""A local job that begins at checkpoints in a bucket: they are copied beside it, and believed by the key alone."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from tests.support.operator.scene import tiny_job
from tests.support.trainer.committed import claimed, write
from tests.support.trainer.storages import SIGNER
from trimtab.api.job import RLJob
from trimtab.api.validation import parse
from trimtab.cli.resuming import find_beginning
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import ObjectStoreSettings, ResumeSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.trainer.checkpoints.folder_storage import FolderStorage
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.reader import CheckpointReader
from trimtab.trainer.checkpoints.seal import SealReader

KEY = SIGNER.public_text


@pytest.fixture
async def place(object_store_settings: ObjectStoreSettings, monkeypatch: pytest.MonkeyPatch) -> str:
    """Checkpoints of steps 2 and 4, where the variables of the AWS tools lead."""
    keys = object_store_settings
    assert keys.access_key_id is not None
    assert keys.secret_access_key is not None
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(keys.endpoint_url))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys.access_key_id.get_secret_value())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys.secret_access_key.get_secret_value())
    prefix = f"kept/{uuid.uuid4().hex}/n/j"
    async with ObjectStore(keys.model_copy(update={"prefix": ""})) as store:
        checkpoints = await claimed(ObjectStorage(store, f"{prefix}/solver"), 1)
        for step in (2, 4):
            await write(checkpoints, step)
    return f"s3://{keys.bucket}/{prefix}"


def begun(folder: Path, resume: dict[str, Any]) -> ResumeSettings:
    job = parse(tiny_job(resumeFrom=resume))
    assert isinstance(job, RLJob)
    find_beginning(job, folder, environment=os.environ, console=Console(quiet=True))
    return ResumeSettings.model_validate_json((folder / "resume.json").read_bytes())


def test_the_checkpoint_lies_beside_the_job_then(place: str, tmp_path: Path) -> None:
    found = begun(tmp_path, {"checkpoint": place, "publicKey": KEY, "step": 2})
    assert found.steps_of("solver") == (2,)
    assert found.place == str(tmp_path / "resume")
    assert begun(tmp_path, {"checkpoint": place, "publicKey": KEY}).steps_of("solver") == (4,)


async def test_it_is_as_it_was_signed(place: str, tmp_path: Path) -> None:
    await asyncio.to_thread(begun, tmp_path, {"checkpoint": place, "publicKey": KEY})
    seal = SealReader(job="n/j", policy="solver", verifier=Verifier([KEY]))
    reader = CheckpointReader(FolderStorage(tmp_path / "resume" / "solver"), seal)
    index = await reader.newest()
    assert index is not None
    assert index.step == 4
    await reader.fetch(index.files[0], tmp_path / "fetched")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"publicKey": Signer.generate().public_text}, "not signed by any of the 1 trusted keys"),
        ({"step": "Best"}, "step: Best goes by the scores of a job"),
        ({"step": 3}, "there is no checkpoint of step 3; there are those of 4, 2"),
        ({"checkpoint": "s3://trimtab/nothing/there"}, "there is no checkpoint of policy solver yet"),
    ],
)
def test_what_cannot_be_begun_with_is_named_before_anything_runs(
    place: str, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(click.ClickException, match=said) as refused:
        begun(tmp_path, {"checkpoint": place, "publicKey": KEY} | changes)
    assert refused.value.message.startswith("spec.resumeFrom")
    assert not (tmp_path / "resume.json").exists()
