"""Every key that is written is recognised, and nothing else."""

from __future__ import annotations

import pytest

from tests.support.weights.sealed_samples import sha
from trimtab.fabric.objects.errors import InvalidKey
from trimtab.weights.store.keys import (
    ChunkName,
    LeaseName,
    ManifestName,
    SingleName,
    chunk_key,
    clock_key,
    condemned_key,
    latest_key,
    lease_key,
    manifest_key,
    parse_key,
)
from trimtab.weights.store.position import Position

BIG = 2**53
TARGET = Position(2, 12)


@pytest.mark.parametrize("base", [None, Position(2, 11), Position(1, 11), Position(2, 4)], ids=str)
@pytest.mark.parametrize("target", [TARGET, Position(BIG, BIG)], ids=str)
def test_manifests(target: Position, base: Position | None) -> None:
    key = manifest_key("p", target=target, base=base, sha256=sha("m"))
    assert parse_key("p", key) == ManifestName(target.epoch, sha("m"))


def test_the_kind_of_a_manifest_shows_in_its_name() -> None:
    bases = [None, Position(1, 11), Position(2, 4)]
    folders = [manifest_key("p", target=TARGET, base=base, sha256=sha("m")).split("/")[3] for base in bases]
    assert folders == ["full", "man", "fold"]


def test_other_objects() -> None:
    assert parse_key("p", chunk_key("p", epoch=BIG, sha256=sha("c"))) == ChunkName(BIG, sha("c"))
    assert parse_key("p", lease_key("p", "pool-0")) == LeaseName("pool-0")
    for single in (latest_key("p"), condemned_key("p"), clock_key("p")):
        assert parse_key("p", single) == SingleName()


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "README",
        "lease/",
        "lease/a/b",
        "latest.json.bak",
        f"1/obj/{sha('c')}",
        f"00000001/obj/{sha('c')[:-1]}",
        f"00000001/obj/{sha('c')}x",
        f"00000001/obj/{sha('c').upper()}",
        f"00000001/man/{sha('c')}",
        f"00000001/man/00000001-{sha('c')}\n",
        "\N{ARABIC-INDIC DIGIT ONE}" * 8 + f"/obj/{sha('c')}",
    ],
)
def test_foreign_keys(rest: str) -> None:
    assert parse_key("p", f"weights/p/{rest}") is None


@pytest.mark.parametrize("name", ["", "a/b", "/"])
def test_names_that_would_leave_their_folder_are_refused(name: str) -> None:
    with pytest.raises(InvalidKey, match="policy"):
        latest_key(name)
    with pytest.raises(InvalidKey, match="member"):
        lease_key("p", name)
