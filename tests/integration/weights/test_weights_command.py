"""`trimtab weights` on a real SeaweedFS that a real publisher has filled."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import structlog
import torch
from click.testing import CliRunner, Result
from pydantic import BaseModel, SecretStr
from safetensors.torch import load_file

from examples.quickstart.make import make_model
from tests.support.polling import eventually, within
from tests.support.rollout.adapter_files import make_adapters
from tests.support.weights.states import LAYOUT, TrainedState
from tests.support.weights.weight_site import RULES, SIGNER, D, WeightSite
from trimtab.cli.main import main
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.streams import declare_stream
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings, WeightSettings, environment_for
from trimtab.fabric.signing import Signer, Verifier
from trimtab.fabric.wire.best_versions import BestVersion, BestVersions
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.weights.baseline import SafetensorsFile
from trimtab.weights.digests import root_digest
from trimtab.weights.merging import merge_into
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.in_flight import InFlight
from trimtab.weights.store.latest import LatestPointer
from trimtab.weights.store.leases import Lease, write_lease
from trimtab.weights.store.manifest import WeightManifest
from trimtab.weights.store.manifests import ManifestReader, write_manifest
from trimtab.weights.store.position import Position
from trimtab.weights.upkeep import UpkeepRules


class Surroundings(BaseModel):
    object_store: ObjectStoreSettings
    weights: WeightSettings


class Shell:
    """Runs commands with the settings of a site, which a test may change."""

    def __init__(self, site: WeightSite, store: ObjectStoreSettings) -> None:
        prefix = site.store.full_key("x").removesuffix("/x")
        keys = WeightSettings(signing_seed=SecretStr(SIGNER.reveal_seed()), public_keys=(SIGNER.public_text,))
        settings = Surroundings(object_store=store.model_copy(update={"prefix": prefix}), weights=keys)
        self.secrets = [SIGNER.reveal_seed()]
        if store.secret_access_key is not None:
            self.secrets.append(store.secret_access_key.get_secret_value())
        self.environment: dict[str, str | None] = dict(environment_for(settings))

    async def __call__(self, *arguments: str, code: int = 0) -> Result:
        runner = CliRunner(env=self.environment)
        result = await asyncio.to_thread(runner.invoke, main, ["weights", *arguments])
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        assert not [secret for secret in self.secrets if secret in result.output]
        return result

    async def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads((await self(*arguments, "--json", code=code)).stdout)


@pytest.fixture
def shell(site: WeightSite, object_store_settings: ObjectStoreSettings) -> Iterator[Shell]:
    """Commands configure the logs of their process, which is ours; they are put back."""
    root = logging.getLogger()
    before = (root.level, sys.excepthook, threading.excepthook)
    handlers, config = list(root.handlers), structlog.get_config()
    yield Shell(site, object_store_settings)
    root.level, sys.excepthook, threading.excepthook = before
    root.handlers[:] = handlers
    logging.captureWarnings(capture=False)
    structlog.configure(**config)


@pytest.fixture
async def filled(site: WeightSite, shell: Shell) -> WeightSite:
    """An anchor, four deltas and a fold over three of them."""
    await site.publish(await site.publisher(), 0, 1, 2, 3, 4)
    await shell("fold", "1", "4")
    return site


def reader(site: WeightSite) -> ManifestReader:
    return ManifestReader(site.store, "p", Verifier([SIGNER.public_text]))


async def entry_of(site: WeightSite, base: int | None, target: int) -> Entry:
    begin = None if base is None else Position(1, base)
    return next(e for e in (await site.latest()).catalogue if (e.base, e.target.version) == (begin, target))


async def add(site: WeightSite, manifest: WeightManifest, *, signer: Signer = SIGNER) -> Entry:
    """A manifest of our own in the catalogue."""
    with InFlight().publication() as claimed:
        entry = await write_manifest(site.store, manifest, signer, publication=claimed, deadline_s=D)
        pointer = LatestPointer(site.store, "p")
        await pointer.update(lambda latest: latest.adding(entry), epoch=manifest.target.epoch, deadline_s=D)
    return entry


async def snapshot(site: WeightSite) -> dict[str, tuple[str, float | None]]:
    return {info.key: (info.etag, info.modified_at) async for info in site.store.scan("weights/")}


async def test_inspect_shows_the_catalogue_the_leases_and_the_costs(filled: WeightSite, shell: Shell) -> None:
    await write_lease(filled.store, "p", Lease(member="pool-0", held=Position(1, 2)), deadline_s=D)
    before = await snapshot(filled)
    found = await shell.json("inspect")
    assert found["newest"] == {"epoch": 1, "version": 4}
    assert found["signatures_checked"] is True
    kinds = [
        (row["kind"], row["base"] and row["base"]["version"], row["target"]["version"]) for row in found["entries"]
    ]
    deltas = [("delta", version, version + 1) for version in range(3)]
    assert kinds == [("anchor", None, 0), *deltas, ("fold", 1, 4), ("delta", 3, 4)]
    assert found["entries"][0]["blocks"] == {"whole": len(LAYOUT.blocks)}
    assert all(row["chunks"] == 1 and row["problem"] is None for row in found["entries"])
    assert found["bytes_by_kind"]["delta"] == sum(row["bytes"] for row in found["entries"] if row["kind"] == "delta")
    assert found["joiner"]["words"] == "the anchor of version 0 of epoch 1, 1 delta, 1 fold"
    assert [(lease["member"], lease["held"]["version"]) for lease in found["leases"]] == [("pool-0", 2)]
    text = (await shell("inspect")).stdout
    for part in ("newest 1/4", "fold", "pool-0 holds 1/2", "1 delta, 1 fold", "% of an anchor", "1970-01-01"):
        assert part in text, text
    assert await snapshot(filled) == before


@pytest.mark.slow
async def test_inspect_works_without_keys_and_says_what_that_means(filled: WeightSite, shell: Shell) -> None:
    shell.environment |= {"TRIMTAB_WEIGHTS__PUBLIC_KEYS": None, "TRIMTAB_WEIGHTS__SIGNING_SEED": None}
    found = await shell.json("inspect")
    assert found["signatures_checked"] is False
    assert len(found["entries"]) == 6
    assert found["entries"][0]["chunks"] is None
    assert "TRIMTAB_WEIGHTS__PUBLIC_KEYS" in (await shell("inspect")).stdout
    for command in (["verify"], ["gc"], ["inspect", "--version", "1"], ["pull", "nowhere"]):
        assert "TRIMTAB_WEIGHTS__PUBLIC_KEYS" in (await shell(*command, code=1)).stderr
    assert "TRIMTAB_WEIGHTS__SIGNING_SEED" in (await shell("fold", "0", "4", code=1)).stderr


@pytest.mark.slow
async def test_inspect_shows_what_a_version_changed(filled: WeightSite, shell: Shell) -> None:
    ways = await shell.json("inspect", "--version", "4")
    assert [way["kind"] for way in ways] == ["delta", "fold"]
    manifest = await reader(filled).read(await entry_of(filled, 3, 4), deadline_s=D)
    assert sum(group["bytes"] for group in ways[0]["groups"]) == sum(piece.size for piece in manifest.pieces)
    assert "embed" in "".join(group["name"] for group in ways[0]["groups"])
    assert "fold from 1/1 to 1/4" in (await shell("inspect", "--version", "4")).stdout
    assert "version 9 of epoch 1 is not" in (await shell("inspect", "--version", "9", code=1)).stderr


async def test_the_policy_is_found_or_has_to_be_chosen(site: WeightSite, shell: Shell) -> None:
    assert "TRIMTAB_OBJECT_STORE__PREFIX" in (await shell("inspect", code=1)).stderr
    await LatestPointer(site.store, "p").claim_epoch(deadline_s=D)
    assert (await shell.json("inspect"))["policy"] == "p"
    await LatestPointer(site.store, "q").claim_epoch(deadline_s=D)
    refusal = (await shell("inspect", code=1)).stderr
    assert "weights of p, q" in refusal
    assert "--policy" in refusal
    assert (await shell.json("inspect", "--policy", "q"))["policy"] == "q"
    assert "there are those of p, q" in (await shell("inspect", "--policy", "r", code=1)).stderr


async def test_wrong_credentials_are_told_by_their_variables(filled: WeightSite, shell: Shell) -> None:
    shell.environment["TRIMTAB_OBJECT_STORE__SECRET_ACCESS_KEY"] = "wrong-secret-of-ours"
    shell.secrets.append("wrong-secret-of-ours")
    assert "TRIMTAB_OBJECT_STORE__SECRET_ACCESS_KEY" in (await shell("inspect", code=1)).stderr


@pytest.mark.slow
async def test_a_sound_store_is_found_sound_without_writing(filled: WeightSite, shell: Shell) -> None:
    before = await snapshot(filled)
    assert "6 manifests" in (await shell("verify")).stdout
    verdict = await shell.json("verify", "--deep")
    assert verdict["faults"] == []
    assert verdict["unconfirmed"] == []
    manifests = [await reader(filled).read(entry, deadline_s=D) for entry in (await filled.latest()).catalogue]
    assert verdict["confirmed_blocks"] == sum(len(manifest.pieces) for manifest in manifests)
    assert verdict["bytes"] == sum(chunk.size for manifest in manifests for chunk in manifest.chunks)
    assert await snapshot(filled) == before


async def test_verify_lists_damaged_and_missing_chunks_and_foreign_signatures(filled: WeightSite, shell: Shell) -> None:
    damaged, missing, lost = [await entry_of(filled, version, version + 1) for version in range(3)]
    key = next(iter((await reader(filled).read(damaged, deadline_s=D)).chunk_keys()))
    body = bytearray((await filled.store.get(key, max_bytes=1 << 20)).body)
    body[len(body) // 2] ^= 1
    await filled.store.put(key, bytes(body))
    await filled.store.delete(next(iter((await reader(filled).read(missing, deadline_s=D)).chunk_keys())))
    await filled.store.delete(lost.key("p"))
    genuine = await reader(filled).read(await entry_of(filled, 3, 4), deadline_s=D)
    foreign = msgspec.structs.replace(genuine, target=Position(1, 5))
    await add(filled, foreign, signer=Signer.generate())
    expected = {(1, "damaged"), (2, "missing"), (3, "missing"), (5, "wrong signature")}
    for arguments in (["verify"], ["verify", "--deep"]):
        verdict = await shell.json(*arguments, code=1)
        assert {(fault["target"]["version"], fault["kind"]) for fault in verdict["faults"]} == expected
    # What can still be decoded has been: the anchor, and of the fold what the damaged chunk has no part in.
    changed = {piece.block for piece in (await reader(filled).read(damaged, deadline_s=D)).pieces}
    fold = await reader(filled).read(await entry_of(filled, 1, 4), deadline_s=D)
    untouched = [piece for piece in fold.pieces if piece.block not in changed]
    assert verdict["confirmed_blocks"] == len(LAYOUT.blocks) + len(untouched)
    assert verdict["unconfirmed"] == [str(await entry_of(filled, base, 4)) for base in (1, 3)]
    text = (await shell("verify", code=1)).stdout
    assert "damaged: delta from version 0 of epoch 1 to version 1 of epoch 1" in text
    assert "4 faults" in text


@pytest.mark.slow
async def test_only_a_deep_look_finds_a_signed_lie(filled: WeightSite, shell: Shell) -> None:
    genuine = await reader(filled).read(await entry_of(filled, 3, 4), deadline_s=D)
    wrong_root = msgspec.structs.replace(genuine, target=Position(1, 5), root="f" * 64)
    await add(filled, wrong_root)
    # Consistent in itself, but its payload does not decode to the digest that it names.
    piece = msgspec.structs.replace(genuine.pieces[0], digest="0" * 32)
    target = [bytes.fromhex(digest) for digest in await _digests(filled, piece.block, piece.digest)]
    wrong_content = msgspec.structs.replace(
        genuine, target=Position(1, 6), pieces=(piece, *genuine.pieces[1:]), root=root_digest(LAYOUT, target)
    )
    await add(filled, wrong_content)
    await shell("verify")
    verdict = await shell.json("verify", "--deep", code=1)
    assert [(fault["kind"], fault["target"]["version"]) for fault in verdict["faults"]] == [
        ("wrong state", 5),
        ("wrong state", 6),
    ]
    assert "do not give its root" in verdict["faults"][0]["reason"]
    assert "something else than promised" in verdict["faults"][1]["reason"]


async def _digests(site: WeightSite, block: int, digest: str) -> list[str]:
    """Those of version 4, with another one for a block."""
    digests: dict[int, str] = {}
    for base, target in [(None, 0), (0, 1), (1, 2), (2, 3), (3, 4)]:
        manifest = await reader(site).read(await entry_of(site, base, target), deadline_s=D)
        digests |= {piece.block: piece.digest for piece in manifest.pieces}
    return list((digests | {block: digest}).values())


@pytest.mark.slow
async def test_after_a_collection_what_is_left_is_decoded_as_far_as_its_anchors_reach(
    site: WeightSite, shell: Shell
) -> None:
    rules = UpkeepRules(anchor_every=4, fold_every=None, collection=RULES.collection)
    publisher = await site.publisher(rules=rules)
    for version in range(6):
        await site.publish(publisher, version)
        await publisher.flush()
    await shell("gc", "--keep-versions", "3")
    verdict = await shell.json("verify", "--deep")
    assert verdict["faults"] == []
    assert verdict["unconfirmed"] == [
        "the delta from version 2 of epoch 1 to version 3 of epoch 1",
        "the delta from version 3 of epoch 1 to version 4 of epoch 1",
    ]


@pytest.mark.slow
async def test_a_dry_run_changes_nothing_and_says_what_gc_then_does(filled: WeightSite, shell: Shell) -> None:
    await write_lease(filled.store, "p", Lease(member="pool-0", held=Position(1, 3)), deadline_s=D)
    await filled.store.put("weights/p/notes.txt", b"not ours")
    arguments = ("gc", "--keep-versions", "1", "--grace", "0s")
    rounds = []
    for _ in range(3):
        before = await snapshot(filled)
        foreseen = await shell.json(*arguments, "--dry-run")
        assert await snapshot(filled) == before
        done = await shell.json(*arguments)
        rounds.append(done["collected"])
        for found in (foreseen["collected"], done["collected"]):
            for part in ("condemned", "deleted", "unknown"):
                found[part] = set(found[part])
        assert foreseen["collected"] == done["collected"]
    condemned, deleted, nothing = rounds
    assert {entry["target"]["version"] for entry in condemned["dropped"]} == {2, 3}
    assert len(condemned["condemned"]) == 4
    assert not condemned["deleted"]
    assert deleted["deleted"] == condemned["condemned"]
    assert deleted["freed_bytes"] > 0
    assert not nothing["deleted"] | nothing["condemned"]
    assert nothing["unknown"] == {"weights/p/notes.txt"}
    assert not deleted["deleted"] & set(await snapshot(filled))
    await shell("verify", "--deep")


@pytest.mark.slow
async def test_gc_explains_itself(filled: WeightSite, shell: Shell) -> None:
    text = (await shell("gc", "--keep-versions", "1", "--dry-run")).stdout
    assert "dry run: nothing was written" in text
    assert "the delta from version 1 of epoch 1 to version 2 of epoch 1" in text
    assert "two runs" in text
    assert "10m later" in text


@pytest.mark.slow
async def test_a_fold_is_refused_with_the_reason(filled: WeightSite, shell: Shell) -> None:
    assert "is there already" in (await shell("fold", "1", "4", code=1)).stderr
    assert "version 9 of epoch 1 is not" in (await shell("fold", "1", "9", code=1)).stderr
    shell.environment["TRIMTAB_WEIGHTS__PUBLIC_KEYS"] = Signer.generate().public_text
    refusal = (await shell("fold", "0", "4", code=1)).stderr
    assert "TRIMTAB_WEIGHTS__SIGNING_SEED" in refusal
    assert "TRIMTAB_WEIGHTS__PUBLIC_KEYS" in refusal
    shell.environment["TRIMTAB_WEIGHTS__SIGNING_SEED"] = "bm90IGEga2V5"
    assert "has 9 bytes instead of 32" in (await shell("fold", "0", "4", code=1)).stderr


async def test_pull_fetches_everything_once_and_then_only_the_delta(
    site: WeightSite, shell: Shell, tmp_path: Path
) -> None:
    publisher, folder = await site.publisher(), tmp_path / "pulled"
    await site.publish(publisher, 0, 1)
    first = (await shell("pull", str(folder), "--rate", "50MB")).stdout
    assert "version 1 of epoch 1" in first
    assert "the anchor of version 0 of epoch 1, 1 delta" in first
    assert (folder / "model.safetensors").read_bytes() == TrainedState(1).file()
    await site.publish(publisher, 2)
    second = (await shell("pull", str(folder))).stdout
    assert "(1 delta)" in second
    assert (folder / "model.safetensors").read_bytes() == TrainedState(2).file()
    assert "already, the newest" in (await shell("pull", str(folder))).stdout
    assert not await site.sizes("lease")


async def test_pull_brings_a_version_by_its_number_also_back_from_a_later_one(
    site: WeightSite, shell: Shell, tmp_path: Path
) -> None:
    await site.publish(await site.publisher(), 0, 1, 2, 3)
    for version in (3, 1, 2):
        said = (await shell("pull", str(tmp_path), "--version", str(version))).stdout
        assert f"is version {version} of epoch 1" in said
        assert (tmp_path / "model.safetensors").read_bytes() == TrainedState(version).file()
    refused = (await shell("pull", str(tmp_path), "--version", "9", code=1)).stderr
    assert "there are those of versions 3, 2, 1, 0" in refused
    assert "exclude each other" in (await shell("pull", str(tmp_path), "--version", "1", "--best", code=2)).stderr
    assert not await site.sizes("lease")


async def test_pull_brings_the_version_that_did_best(
    site: WeightSite, shell: Shell, nats_settings: NatsSettings, tmp_path: Path
) -> None:
    """As the job's evaluations have it, which lie on NATS."""
    await site.publish(await site.publisher(), 0, 1, 2)
    topology = JobTopology("default", f"job-{uuid4().hex[:8]}")
    async with await Bus.connect(nats_settings, name="test") as bus:
        await declare_stream(bus, topology.balance, deadline_s=D)
        bucket = KeyValue(bus, topology.balance)
        for version, score in ((0, 0.1), (1, 0.7), (2, 0.4)):
            result = EvaluationResult(
                job="j", policy="p", benchmark="b", version=version, score=score, episodes=4, failed=0, at=1.0
            )
            await bucket.put(topology.evaluation_key("p", "b", version=version), encode(result), deadline_s=D)
    assert nats_settings.password is not None
    shell.secrets.append(nats_settings.password.get_secret_value())
    shell.environment |= {
        "TRIMTAB_NATS__SERVERS": ",".join(nats_settings.servers),
        "TRIMTAB_NATS__USER": nats_settings.user,
        "TRIMTAB_NATS__PASSWORD": nats_settings.password.get_secret_value(),
    }
    best = ("pull", str(tmp_path), "--best", "--job", topology.job)
    assert "is version 1 of epoch 1" in (await shell(*best)).stdout
    assert (tmp_path / "model.safetensors").read_bytes() == TrainedState(1).file()
    assert "not evaluated on c, but on b" in (await shell(*best, "--benchmark", "c", code=1)).stderr


@pytest.mark.slow
async def test_pull_brings_the_version_that_was_kept_for_its_score_when_the_job_is_gone(
    site: WeightSite, shell: Shell, tmp_path: Path
) -> None:
    async def ask_best() -> BestVersions:
        return BestVersions(policy="p", best=(BestVersion(benchmark="b", version=1, score=0.7),))

    best = ("pull", str(tmp_path), "--best")
    publisher = await site.publisher(ask_best=ask_best)
    await site.publish(publisher, 0, 1, 2)
    assert "no version of p was kept for its score" in (await shell(*best, code=1)).stderr
    await publisher.finish()
    assert "is version 1 of epoch 1" in (await shell(*best)).stdout
    assert (tmp_path / "model.safetensors").read_bytes() == TrainedState(1).file()
    assert "not evaluated on c, but on b" in (await shell(*best, "--benchmark", "c", code=1)).stderr


@pytest.mark.slow
async def test_one_who_was_away_pulls_the_fold(site: WeightSite, shell: Shell, tmp_path: Path) -> None:
    publisher = await site.publisher()
    await site.publish(publisher, 0, 1)
    await shell("pull", str(tmp_path))
    await site.publish(publisher, 2, 3, 4)
    assert "instead of" in (await shell("fold", "1", "4")).stdout
    assert "(1 fold)" in (await shell("pull", str(tmp_path))).stdout
    assert (tmp_path / "model.safetensors").read_bytes() == TrainedState(4).file()


@pytest.mark.slow
async def test_pull_keeps_to_its_budget_and_to_its_keys(filled: WeightSite, shell: Shell, tmp_path: Path) -> None:
    assert "--max-bytes is 10.0 kB" in (await shell("pull", str(tmp_path), "--max-bytes", "10kB", code=1)).stderr
    shell.environment["TRIMTAB_WEIGHTS__PUBLIC_KEYS"] = Signer.generate().public_text
    assert "signature is wrong" in (await shell("pull", str(tmp_path), code=1)).stderr
    assert not (tmp_path / "model.safetensors").exists()
    assert not await filled.sizes("lease")


@pytest.mark.slow
async def test_an_interrupted_pull_keeps_what_it_has_and_goes_on(
    site: WeightSite, shell: Shell, tmp_path: Path
) -> None:
    await site.publish(await site.publisher(), 0)
    environment = os.environ | {name: value for name, value in shell.environment.items() if value is not None}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trimtab.cli.main", "weights", "pull", str(tmp_path), "--rate", "16kB",
        env=environment, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        await eventually(lambda: any((tmp_path / ".spool").glob("*.part")), timeout_s=60.0)
        process.send_signal(signal.SIGINT)
        _, told = await within(process.communicate(), 60.0)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 130
    assert b"call again to go on" in told
    assert b"Traceback" not in told
    (part,) = (tmp_path / ".spool").glob("*.part")
    assert 0 < part.stat().st_size < TrainedState(0).layout.data_bytes
    assert not await site.sizes("lease")
    assert not (tmp_path / "model.safetensors").exists()
    (key,) = await site.sizes("obj")
    body = (await site.store.get(key, max_bytes=1 << 20)).body
    assert body.startswith(part.read_bytes())
    # With the rest put there by hand and the object gone, only one that goes on from the spool can end well.
    part.write_bytes(body)
    await site.store.delete(key)
    await shell("pull", str(tmp_path), "--rate", "50MB")
    assert (tmp_path / "model.safetensors").read_bytes() == TrainedState(0).file()
    assert not list((tmp_path / ".spool").glob("*.part"))


@pytest.mark.slow
async def test_adapters_are_exported_by_themselves_or_merged(site: WeightSite, shell: Shell, tmp_path: Path) -> None:
    make_model(tmp_path / "model", seed=0)
    publisher = await site.publisher()
    for version in range(2):
        given = make_adapters(tmp_path / "model", tmp_path / f"given-{version}", rank=4, seed=version)
        captured = publisher.capture(SafetensorsFile(given / "model.safetensors"))
        await publisher.publish(version, captured, deadline_s=D)
    said = (await shell("export", str(tmp_path / "alone"))).stdout
    assert "adapters of rank 4 for q_proj, k_proj" in said
    assert "version 1 of epoch 1" in said
    assert "adapters of rank 4 for q_proj, k_proj" in (await shell("inspect", "--version", "1")).stdout
    assert {path.name for path in (tmp_path / "alone").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    newest = load_file(tmp_path / "given-1" / "model.safetensors")
    alone = load_file(tmp_path / "alone" / "adapter_model.safetensors")
    assert alone.keys() == newest.keys()
    assert all(torch.equal(alone[name], newest[name]) for name in newest)

    target = tmp_path / "merged"
    assert "merged into" in (await shell("export", str(target), "--merge-into", str(tmp_path / "model"))).stdout
    merge_into(tmp_path / "model", tmp_path / "given-1" / "model.safetensors", tmp_path / "expected")
    names = {path.name for path in (tmp_path / "expected").iterdir()}
    assert {path.name for path in target.iterdir()} == names
    assert all((target / name).read_bytes() == (tmp_path / "expected" / name).read_bytes() for name in names)

    make_model(tmp_path / "other", seed=0)
    (tmp_path / "other" / "model.safetensors").unlink()
    refused = (await shell("export", str(tmp_path / "none"), "--merge-into", str(tmp_path / "other"), code=1)).stderr
    assert "take the model that the job began with" in refused
    assert not await site.sizes("lease")


@pytest.mark.slow
async def test_whole_weights_are_not_exported_as_adapters(filled: WeightSite, shell: Shell, tmp_path: Path) -> None:
    refused = (await shell("export", str(tmp_path / "none"), code=1)).stderr
    assert "the weights of p are whole, not adapters; `trimtab weights pull` fetches them" in refused
