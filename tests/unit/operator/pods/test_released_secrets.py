"""Secrets of jobs that released versions have made: this version finds the keys in them that the jobs sign with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.released.folders import released
from tests.support.released.objects import JOB
from trimtab.dataflow.ledger.authorship import JournalKey
from trimtab.fabric.signing import Signer
from trimtab.operator.pods.credentials import kept_keys, secret_name


@pytest.mark.parametrize("folder", released(), ids=lambda folder: folder.name)
def test_the_keys_of_a_job_are_found(folder: Path) -> None:
    running = json.loads((folder / "objects.json").read_text())["running"]
    (secret,) = (one for one in running if one["kind"] == "Secret" and one["metadata"]["name"] == secret_name(JOB))
    seed, ledger = kept_keys(secret)
    assert seed is not None
    assert Signer(seed).public_text
    assert ledger is not None
    assert JournalKey(ledger)
