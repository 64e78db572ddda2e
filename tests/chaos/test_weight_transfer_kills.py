"""Publisher and pullers are killed again and again at random moments: no copy is ever a mix of versions, nothing in
use is collected, and what is left in the store at the end is what the catalogue leads to.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.guarded_run import memory_folder
from tests.support.sizes import Sizes
from tests.support.template_process import TemplateProcess, template_process
from tests.support.weights import transfer_worker as worker
from tests.support.weights.transfer_site import COLLECTION, MEMBERS, POLICY, RANGE_BYTES, Site, model
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.signing import Signer
from trimtab.weights.apply.copy_files import CopyFiles
from trimtab.weights.apply.host_copy import HostCopy
from trimtab.weights.puller import PullLimits, WeightPuller
from trimtab.weights.store.collection import CollectionRules, collect
from trimtab.weights.store.in_flight import InFlight
from trimtab.weights.store.keys import ChunkName, LeaseName, ManifestName, parse_key, policy_prefix
from trimtab.weights.store.latest import Latest, LatestPointer
from trimtab.weights.store.leases import drop_lease
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import cheapest_route
from trimtab.weights.verification import check_chunks, check_manifests, check_states

MOST_STRETCH = 6.0
TRAINER = "trainer"
LIVES_S = {TRAINER: (0.3, 2.0), "slow": (0.2, 4.0), "leaver": (0.1, 0.9)}
D = 60.0
_SHA256_DIGITS = 64


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with (
        EmbeddedNats(tmp_path / "nats") as nats,
        EmbeddedSeaweed(tmp_path / "seaweedfs") as store,
        memory_folder() as copies,
    ):
        folder = tmp_path / "site"
        folder.mkdir()
        name = f"w{uuid.uuid4().hex[:12]}"
        yield Site(nats.settings, store.settings, folder, Path(copies), name, Signer.generate().reveal_seed())


@dataclass
class Storm:
    """Starts and kills the processes, and looks at a copy whenever its owner is dead."""

    site: Site
    template: TemplateProcess
    chance: random.Random
    alive: dict[str, int] = field(default_factory=dict)
    lives: int = 0
    stretch: float = 1.0
    """Of lives. On a slow machine little happens in short ones."""
    moments: Counter[str] = field(default_factory=Counter)

    def run(self, kills: int) -> None:
        """Whoever is killed starts again at once."""
        self.stop()
        due = [(self._start(name), name) for name in LIVES_S]
        heapq.heapify(due)
        for _ in range(kills):
            moment, name = heapq.heappop(due)
            time.sleep(max(0.0, moment - time.monotonic()))
            self._kill(name)
            heapq.heappush(due, (self._start(name), name))

    def stop(self) -> None:
        for name in list(self.alive):
            self._kill(name)

    def _start(self, name: str) -> float:
        """When it is to be killed."""
        self.lives += 1
        if name == TRAINER:
            self.alive[name] = self.template.start(worker.publish_until_killed, self.site, self.lives)
        else:
            self.alive[name] = self.template.start(worker.pull_until_killed, self.site, name, self.lives)
        return time.monotonic() + self.stretch * self.chance.uniform(*LIVES_S[name])

    def _kill(self, name: str) -> None:
        self.template.kill(self.alive.pop(name))
        if name != TRAINER:
            self.moments.update(_left_by(CopyFiles(self.site.copy_of(name), self.site.spool_of(name))))
            check_copy(self.site, name)


def _left_by(files: CopyFiles) -> set[str]:
    """In the midst of what a puller was killed."""
    applying = (files.writing, files.prepared, files.committed, files.building)
    fetched = [path for path in files.spool.glob("*") if len(path.name) >= _SHA256_DIGITS]
    return {what for what, files in (("apply", [p for p in applying if p.exists()]), ("fetch", fetched)) if files}


def check_copy(site: Site, member: str) -> None:
    """The copy of a dead process is exactly one version, and not older than one it has reported."""
    reported: Position | None = None
    for line in site.notes(member).lines():
        if line.what == "committed":
            assert line.position is not None
            assert reported is None or line.position >= reported
            reported = line.position
        elif line.what == "leaving":
            reported = None
    copy = HostCopy.open(site.copy_of(member), site.spool_of(member))
    if copy is None:
        assert reported is None, f"{member} has reported {reported}, and its copy is gone"
        return
    held = Position(copy.held.epoch, copy.held.version)
    copy.close()
    assert reported is None or held >= reported
    assert _sha256_of(site.copy_of(member) / "model.safetensors") == _ledger(site)[held], f"{member} is not {held}"


def _ledger(site: Site) -> dict[Position, str]:
    return {line.position: line.sha256 for line in site.ledger.lines() if line.position is not None}


def _sha256_of(file: Path) -> str:
    """Of the weights, without the header."""
    return hashlib.sha256(file.read_bytes()[len(model().prefix) :]).hexdigest()


def check_notes(site: Site) -> None:
    """What pullers met on their way: nothing damaged, nothing wrong, nothing gone that they had leased."""
    for member in MEMBERS:
        for line in site.notes(member).lines():
            assert line.what != "host_copy_discarded", line
            assert line.error in {"", "NoRoute", "MissingChunk", "ObjectNotFound"}, line
            assert line.error != "NoRoute" or line.reason.endswith("yet"), f"a version was published: {line}"
            assert line.pinned_s is None or line.pinned_s > COLLECTION.lease_ttl_s, f"collected while leased: {line}"
    assert [line for line in site.trainer_notes.lines() if line.what == "upkeep_failed"] == []


def not_hit(storm: Storm, *, kills: int) -> list[str]:
    """Parts of a transfer that kills have not hit often enough to show anything."""
    site = storm.site
    published = [line.position for line in site.trainer_notes.lines() if line.position is not None]
    committed = [sum(line.what == "committed" for line in site.notes(member).lines()) for member in MEMBERS]
    found = {
        "publications": (len(published), kills // 5 + 1),
        "publications cut short": (len(_ledger(site)) - len(published), kills // 40),
        "trainers that went on from older checkpoints": (
            sum(later.version < earlier.version for earlier, later in pairwise(published)),
            kills // 60,
        ),
        "collections": (
            sum(line.what == "weights_collected" for line in site.trainer_notes.lines()),
            kills // 200,
        ),
        "fetches": (storm.moments["fetch"], kills // 40),
        "applications": (storm.moments["apply"], kills // 200),
        "commits": (min(committed), max(1, kills // 40)),
    }
    return [part for part, (hit, enough) in found.items() if hit < enough]


async def collect_all(site: Site, store: ObjectStore) -> Latest:
    """With nobody left who needs anything, and no grace: what stays is what the catalogue leads to."""
    for member in MEMBERS:
        await drop_lease(store, POLICY, member, deadline_s=D)
    pointer = LatestPointer(store, POLICY)
    epoch = (await pointer.claim_epoch(deadline_s=D)).epoch
    reader = ManifestReader(store, POLICY, site.verifier)
    rules = CollectionRules(keep_versions=COLLECTION.keep_versions, lease_ttl_s=D, grace_s=0.0)
    for _ in range(3):  # condemned, deleted, and once more for what a dying trainer's last request wrote
        done = await collect(
            store, POLICY, epoch=epoch, rules=rules, pointer=pointer, manifests=reader, in_flight=InFlight(),
            deadline_s=D,
        )  # fmt: skip
        assert done.unknown == ()
    latest = await pointer.read(deadline_s=D)
    assert latest is not None
    return latest


async def check_store(site: Site, store: ObjectStore, latest: Latest) -> None:
    """Everything in the catalogue is there, whole and right, and there is nothing else."""
    checked = await check_manifests(store, POLICY, site.verifier, latest, parallel=4, deadline_s=D)
    chunks = await check_chunks(store, checked, spool=site.folder / "audit", keep=True, parallel=4, deadline_s=D)
    states = check_states(checked, chunks.kept, threads=2)
    assert (checked.faults, chunks.faults, states.faults) == ((), (), ())
    # Deltas may be kept for pools that hold what they begin at, when no anchor leads there any more.
    assert not {*states.unconfirmed} & {*cheapest_route(latest, None).entries}
    names = {info.key: parse_key(POLICY, info.key) async for info in store.scan(policy_prefix(POLICY))}
    assert {key for key, name in names.items() if isinstance(name, ChunkName)} == set(checked.chunks())
    manifests = {key for key, name in names.items() if isinstance(name, ManifestName)}
    assert manifests == {entry.key(POLICY) for entry in latest.catalogue}
    assert not [key for key, name in names.items() if isinstance(name, LeaseName)]


async def pull_newest(site: Site, store: ObjectStore, member: str, newest: Position) -> None:
    folder, spool = site.copy_of(member), site.spool_of(member)
    limits = PullLimits(range_bytes=RANGE_BYTES)
    puller = WeightPuller(store, POLICY, site.verifier, folder=folder, spool=spool, member=member, limits=limits)
    await puller.open()
    assert await puller.pull(deadline_s=D) == newest
    await puller.close()
    assert _sha256_of(folder / "model.safetensors") == _ledger(site)[newest]
    assert not [path.name for path in spool.iterdir() if len(path.name) >= _SHA256_DIGITS]


async def audit(site: Site) -> None:
    async with ObjectStore(site.store) as store:
        latest = await collect_all(site, store)
        await check_store(site, store, latest)
        assert latest.newest is not None
        for member in (*MEMBERS, "joiner"):
            await pull_newest(site, store, member, latest.newest)


def test_transfers_killed_at_random_moments_lose_nothing_mix_nothing_and_leave_no_garbage(
    site: Site, sizes: Sizes
) -> None:
    kills = sizes.weight_transfer_kills
    with template_process(worker.prepare) as template:
        storm = Storm(site, template, random.Random(20261115))
        storm.run(kills)
        while not_hit(storm, kills=kills) and storm.stretch < MOST_STRETCH:
            storm.stretch *= 1.5
            storm.run(kills // 5)
        storm.stop()
    check_notes(site)
    assert not_hit(storm, kills=kills) == []
    asyncio.run(audit(site))
