"""A backup is whole and as it was written, or refused with the name of what is wrong; keys are under a passphrase."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from trimtab.cli.backup import backup
from trimtab.cli.backups.contents import (
    INDEX,
    BackupIndex,
    KeyStorage,
    StreamRecord,
    UnusableBackup,
    encoded,
    ledger_key_digest,
)
from trimtab.cli.backups.folder import checked, new_backup
from trimtab.cli.backups.restoring import keys_of
from trimtab.cli.backups.sealing import WrongPassphrase, enclosed, opened, passphrase_in
from trimtab.cli.restore import restore
from trimtab.fabric.signing import Signer
from trimtab.operator.pods.job_keys import JobKeys

SEED = Signer.generate().reveal_seed()
KEYS = JobKeys(signing_seed=SEED, ledger_key="bGVkZ2Vy")


def made(folder: Path, *, keys: KeyStorage = KeyStorage.ABSENT) -> BackupIndex:
    with new_backup(folder) as new:
        new.path("streams/00").write_bytes(b"ledger")
        new.path("objects/weights/x").write_bytes(b"weights")
        index = BackupIndex(
            namespace="default",
            job="job",
            made_at=1.0,
            keys=keys,
            public_key=Signer(SEED).public_text,
            ledger_key_digest=ledger_key_digest(KEYS.ledger_key),
            attempts={"job-solver": 2},
            steps={"solver": 6},
            streams=(StreamRecord("streams/00", {"name": "S"}, {"first_seq": 1}),),
            files=new.files(),
        )
        new.finish(index)
    return index


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    index = made(tmp_path / "backup")
    assert checked(tmp_path / "backup") == index
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("streams/00", b"LEDGER", "streams/00 has another checksum"),
        ("streams/00", b"led", "streams/00 has 3 bytes, written were 6"),
        ("objects/weights/x", None, "objects/weights/x is missing"),
        (INDEX, None, f"has no {INDEX}"),
        (INDEX, b"{", f"{INDEX} cannot be read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, file: str, content: bytes | None, says: str) -> None:
    made(tmp_path / "backup")
    path = tmp_path / "backup" / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(UnusableBackup, match=says):
        checked(tmp_path / "backup")


def test_a_changed_index_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "backup")
    file = tmp_path / "backup" / INDEX
    file.write_bytes(file.read_bytes().replace(b'"solver":6', b'"solver":7'))
    with pytest.raises(UnusableBackup, match="another checksum"):
        checked(tmp_path / "backup")


@pytest.mark.parametrize("name", ["../secret", "state/../streams/00"])
def test_an_index_that_leads_out_of_its_folders_is_refused(tmp_path: Path, name: str) -> None:
    index = made(tmp_path / "backup")
    (tmp_path / "secret").write_bytes(b"ledger")
    files = {**index.files, name: index.files["streams/00"]}
    changed = BackupIndex(**{name: getattr(index, name) for name in index.__struct_fields__} | {"files": files})
    (tmp_path / "backup" / INDEX).write_bytes(encoded(changed))
    with pytest.raises(UnusableBackup, match=f"names {re.escape(name)}, which is not in the backup"):
        checked(tmp_path / "backup")


def test_one_that_was_cut_short_leaves_nothing(tmp_path: Path) -> None:
    def cut_short() -> None:
        with new_backup(tmp_path / "backup") as new:
            new.path("streams/00").write_bytes(b"ledger")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cut_short()
    assert list(tmp_path.iterdir()) == []


def test_keys_need_their_passphrase(tmp_path: Path) -> None:
    body = enclosed(KEYS, passphrase="correct horse battery", job="default/job")
    assert SEED.encode() not in body
    assert opened(body, storage=KeyStorage.SEALED, passphrase="correct horse battery", job="default/job") == KEYS
    for passphrase, job in (("correct horse batterz", "default/job"), ("correct horse battery", "default/other")):
        with pytest.raises(WrongPassphrase, match="is not the one"):
            opened(body, storage=KeyStorage.SEALED, passphrase=passphrase, job=job)
    with pytest.raises(WrongPassphrase, match="--passphrase-file"):
        opened(body, storage=KeyStorage.SEALED, passphrase=None, job="default/job")


def test_a_short_passphrase_is_refused(tmp_path: Path) -> None:
    (tmp_path / "passphrase").write_text("secret\n")
    with pytest.raises(WrongPassphrase, match="has 6 characters; at least 12 are needed"):
        passphrase_in(tmp_path / "passphrase")


def test_keys_of_another_job_are_refused(tmp_path: Path) -> None:
    index = made(tmp_path / "backup")
    target = tmp_path / "state"
    with pytest.raises(UnusableBackup, match="signing-seed"):
        keys_of(tmp_path / "backup", index, target, passphrase=None)
    target.mkdir()
    for seed, ledger, says in ((Signer.generate().reveal_seed(), KEYS.ledger_key, "seed"), (SEED, "eA==", "ledger")):
        (target / "signing-seed").write_text(seed)
        (target / "ledger-key").write_text(ledger)
        with pytest.raises(UnusableBackup, match=says):
            keys_of(tmp_path / "backup", index, target, passphrase=None)
    (target / "ledger-key").write_text(KEYS.ledger_key)
    assert keys_of(tmp_path / "backup", index, target, passphrase=None) == KEYS


def test_nothing_is_written_before_it_is_said_what_becomes_of_the_keys(tmp_path: Path) -> None:
    for options in ([], ["--plain-keys", "--no-keys"]):
        said = CliRunner().invoke(backup, ["job", str(tmp_path / "backup"), *options])
        assert said.exit_code == 1
        assert "--passphrase-file FILE, --plain-keys or --no-keys" in said.output
    assert list(tmp_path.iterdir()) == []


def test_it_is_said_where_a_backup_is_to_be_restored_and_with_which_keys(tmp_path: Path) -> None:
    made(tmp_path / "backup")
    for arguments, said in (
        ([], "choose one of --state-folder DIR"),
        (["--cluster", "--state-folder", str(tmp_path / "state")], "choose one of --state-folder DIR"),
        (["--state-folder", str(tmp_path / "state"), "--keys-folder", str(tmp_path)], "goes with --cluster"),
        (["--cluster"], "name a folder with the job's signing-seed and ledger-key with --keys-folder"),
        (["--cluster", "--keys-folder", str(tmp_path)], f"put the job's signing seed into {tmp_path / 'signing-seed'}"),
    ):
        refused = CliRunner().invoke(restore, [str(tmp_path / "backup"), *arguments])
        assert refused.exit_code == 1
        assert said in refused.output
    assert not (tmp_path / "state").exists()
