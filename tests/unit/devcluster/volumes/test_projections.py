from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.devcluster.pods import a_pod
from trimtab.devcluster.container.environment import Source, SourceMissing, Sources
from trimtab.devcluster.pod.spec import PodFacts
from trimtab.devcluster.volumes.projections import File, TokenWish, files_of, sources_of, tokens_of, write_files

FACTS = PodFacts(pod=a_pod({"resources": {"limits": {"cpu": "3"}}}), node="n", allocatable={})
SOURCES = Sources(
    content={Source("ConfigMap", "m"): {"a": b"1", "b": b"2"}, Source("Secret", "s"): {"password": b"hush"}}
)
MIXED = {
    "name": "v",
    "projected": {
        "defaultMode": 0o440,
        "sources": [
            {"configMap": {"name": "m", "items": [{"key": "b", "path": "deep/b", "mode": 0o400}]}},
            {"secret": {"name": "s"}},
            {
                "downwardAPI": {
                    "items": [
                        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                        {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}},
                    ]
                }
            },
            {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}},
        ],
    },
}


def test_a_projected_volume_is_the_sum_of_its_parts() -> None:
    wish = TokenWish("vault", 600)
    assert sources_of(MIXED) == {Source("ConfigMap", "m"), Source("Secret", "s")}
    assert tokens_of(MIXED) == {wish}
    assert files_of(MIXED, facts=FACTS, sources=SOURCES, tokens={wish: "t"}) == {
        "deep/b": File(content=b"2", mode=0o400),
        "password": File(content=b"hush", mode=0o440),
        "labels": File(content=b'role="rollout"', mode=0o440),
        "cpu": File(content=b"3", mode=0o440),
        "token": File(content=b"t", mode=0o440),
    }


def test_plain_volumes() -> None:
    found = files_of({"name": "v", "configMap": {"name": "m"}}, facts=FACTS, sources=SOURCES, tokens={})
    assert {path: file.content for path, file in found.items()} == {"a": b"1", "b": b"2"}
    found = files_of({"name": "v", "secret": {"secretName": "s"}}, facts=FACTS, sources=SOURCES, tokens={})
    assert list(found) == ["password"]


def test_a_missing_source_is_an_error_unless_optional() -> None:
    volume = {"name": "v", "configMap": {"name": "none"}}
    with pytest.raises(SourceMissing):
        files_of(volume, facts=FACTS, sources=SOURCES, tokens={})
    volume = {"name": "v", "configMap": {"name": "none", "optional": True}}
    assert files_of(volume, facts=FACTS, sources=SOURCES, tokens={}) == {}


def test_files_change_together_and_what_is_gone_goes(tmp_path: Path) -> None:
    volume = tmp_path / "v"
    write_files(volume, {"a": File(content=b"1", mode=0o400), "deep/b": File(content=b"2", mode=0o644)})
    assert ((volume / "a").read_bytes(), (volume / "deep" / "b").read_bytes()) == (b"1", b"2")
    assert (volume / "a").stat().st_mode & 0o777 == 0o400
    before = (volume / "..data").readlink()
    write_files(volume, {"a": File(content=b"1", mode=0o400), "deep/b": File(content=b"2", mode=0o644)})
    assert (volume / "..data").readlink() == before  # nothing changed, nothing is written
    write_files(volume, {"a": File(content=b"new", mode=0o600)})
    assert (volume / "a").read_bytes() == b"new"
    assert sorted(path.name for path in volume.iterdir() if not path.name.startswith("..")) == ["a"]
    assert not (volume / before).exists()
