"""Killed at any moment, a host copy is bit for bit at one version or at the next when it is opened again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.guarded_run import memory_folder
from tests.support.sizes import Sizes
from tests.support.weights.copy_states import Bytes, Site, content_of, held_of, prepared, put_changes, weights
from tests.support.weights.host_copy_worker import model, run_updates, weights_at
from tests.support.weights.killing import dies_at_line
from trimtab.weights.apply.copy_files import CopyFiles
from trimtab.weights.apply.transaction import Transaction
from trimtab.weights.layout import StateLayout

FILES = {"model.safetensors", "copy.json"}
LONGEST_LIFE_S = 0.06


@dataclass(frozen=True)
class Scene:
    """A model of three blocks, two versions of it, and where its copy is."""

    site: Site
    layout: StateLayout
    versions: tuple[Bytes, Bytes]

    def clear(self) -> None:
        shutil.rmtree(self.site.folder, ignore_errors=True)
        shutil.rmtree(self.site.spool, ignore_errors=True)

    def start(self) -> None:
        """A copy at version 0."""
        self.clear()
        self.site.build(self.layout, self.versions[0], version=0).close()

    def dies_at_line_of_commit(self, line: int) -> bool:
        transactions: list[Transaction] = []

        def put() -> None:
            copy = self.site.opened()
            transactions.append(copy.begin(held_of(self.layout, self.versions[1], version=1)))
            put_changes(transactions[0], self.layout, *self.versions, whole=(1,))

        def commit() -> None:
            with transactions[0].prepare() as update:
                update.commit()

        return dies_at_line(commit, line, after=put)

    def commit_and_vanish(self) -> None:
        """The rename that commits has happened, and nothing after it."""
        copy = self.site.opened()
        update = prepared(copy, self.versions[1], whole=(1,))
        copy.files.prepared.rename(copy.files.committed)
        update.close()
        copy.close()

    def version_after_opening(self) -> int:
        """Fails unless the content is exactly that of the version the copy says it holds."""
        copy = self.site.opened()
        version = copy.held.version
        np.testing.assert_array_equal(content_of(copy), self.versions[version])
        assert self.site.leftovers() == FILES
        copy.close()
        return version


@pytest.fixture
def site() -> Iterator[Site]:
    with memory_folder() as folder:
        yield Site(Path(folder) / "copy", Path(folder) / "spool")


@pytest.fixture
def scene(site: Site) -> Scene:
    site = replace(site, piece_elements=48)  # so that a kill can fall into the midst of a block
    layout = StateLayout.of({"rope": ("F32", (40,)), "up": ("BF16", (96,)), "down": ("F16", (54,))})
    return Scene(site, layout, (weights(layout, version=0), weights(layout, version=1)))


def test_a_commit_killed_anywhere_leaves_one_version(scene: Scene, sizes: Sizes) -> None:
    step = sizes.lines_between_kills
    versions: list[int] = []
    scene.start()
    while scene.dies_at_line_of_commit(step * len(versions) + 1):
        versions.append(scene.version_after_opening())
        scene.start()
    # The version changes at one moment, with kills on both sides of it.
    assert versions == sorted(versions)
    assert versions.count(0) > 20 // step
    assert versions.count(1) > 20 // step


def test_a_recovery_killed_anywhere_is_finished_by_the_next(scene: Scene, sizes: Sizes) -> None:
    step = sizes.lines_between_kills
    kills = 0
    while True:
        scene.start()
        scene.commit_and_vanish()
        if not dies_at_line(lambda: scene.site.opened().close(), step * kills + 1):
            break
        kills += 1
        assert scene.version_after_opening() == 1
    assert kills > 40 // step


def test_a_build_killed_anywhere_leaves_all_or_nothing(scene: Scene, sizes: Sizes) -> None:
    """Here it replaces a copy of another layout, which is there until the build begins."""
    other = StateLayout.of({"old": ("F32", (10,))})
    outcomes: list[str] = []
    while True:
        scene.clear()
        scene.site.build(other, weights(other, version=0), version=0).close()
        if not dies_at_line(
            lambda: scene.site.build(scene.layout, scene.versions[1], version=1).close(),
            sizes.lines_between_kills * len(outcomes) + 1,
        ):
            break
        copy = scene.site.open()
        if copy is None:
            outcomes.append("nothing")
            assert scene.site.leftovers() == set()
        elif copy.layout == other:
            outcomes.append("before")
            copy.verify()
            copy.close()
        else:
            outcomes.append("after")
            copy.close()
            assert scene.version_after_opening() == 1
    assert outcomes == sorted(outcomes, key=["before", "nothing", "after"].index)
    assert set(outcomes) == {"before", "nothing", "after"}


def _live_and_die(site: Site, life_s: float) -> int | None:
    """A child updates the copy until it is killed; the last version it said was committed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run_updates(site, reports=writing)
        finally:
            os._exit(1)
    os.close(writing)
    time.sleep(life_s)
    os.kill(child, signal.SIGKILL)
    _, ending = os.waitpid(child, 0)
    assert os.WIFSIGNALED(ending), "the child failed; its traceback is above"
    with os.fdopen(reading, "rb") as pipe:
        reported = pipe.read()
    return int.from_bytes(reported[-8:], "little") if reported else None


def test_updates_killed_at_random_moments_lose_nothing_and_mix_nothing(site: Site, sizes: Sizes) -> None:
    site = replace(site, piece_elements=1 << 12)
    layout = model()
    site.build(layout, weights_at(layout, 0), version=0).close()
    files = CopyFiles(site.folder, site.spool)
    moments: Counter[str] = Counter()
    lives = random.Random(20261115)
    longest_life_s = LONGEST_LIFE_S
    least = sizes.host_copy_rounds
    version = rounds = 0

    def hit_enough() -> bool:
        """Kills have hit updates before and after their commit point, and there were updates between them."""
        hits = (moments[files.writing.name], moments[files.committed.name])
        return rounds >= least and min(hits) >= least // 30 and version > least / 5

    while not hit_enough():
        assert rounds < 10 * least, f"this has shown nothing: {dict(moments)} on the way to version {version}"
        rounds += 1
        reported = _live_and_die(site, lives.uniform(0, longest_life_s))
        moments.update(path.name for path in (files.writing, files.prepared, files.committed) if path.exists())
        copy = site.opened()
        assert copy.held.version >= max(version, reported or 0)
        # Where updates take long, lives must too, or all end before their first commit.
        stretch = 1.1 if copy.held.version == version else 1 / 1.1
        longest_life_s = max(LONGEST_LIFE_S, longest_life_s * stretch)
        version = copy.held.version
        np.testing.assert_array_equal(content_of(copy), weights_at(layout, version))
        assert site.leftovers() == FILES
        copy.close()
