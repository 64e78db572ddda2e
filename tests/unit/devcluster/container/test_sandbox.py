"""The arguments of a view; that bubblewrap makes of them what they say, pods of tests/cluster/devcluster show."""

from __future__ import annotations

from pathlib import Path

from trimtab.devcluster.container.sandbox import Mount, view_arguments


def _triples(arguments: list[str]) -> list[tuple[str, ...]]:
    found, position = [], 0
    while position < len(arguments):
        length = 2 if arguments[position] in ("--tmpfs", "--proc", "--remount-ro") else 3
        found.append(tuple(arguments[position : position + length]))
        position += length
    return found


def test_only_the_folders_on_the_way_are_rebuilt(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "neighbour").touch()
    mount = Mount(source=tmp_path, target=tmp_path / "there" / "new" / "deep", read_only=True)
    calls = _triples(view_arguments([mount], read_only_root=False))
    rebuilt = {call[1] for call in calls if call[0] == "--tmpfs"}
    assert rebuilt == {
        str(folder) for folder in (tmp_path / "there", *(tmp_path / "there").parents) if folder != Path("/")
    }
    neighbour = str(tmp_path / "there" / "neighbour")
    assert ("--dev-bind-try", neighbour, neighbour) in calls
    assert calls[-1] == ("--ro-bind", str(tmp_path), str(mount.target))


def test_a_mount_inside_another_is_that_one_s_affair() -> None:
    outer = Mount(source=Path("/var/lib"), target=Path("/data"))
    inner = Mount(source=Path("/var/cache"), target=Path("/data/inner"))
    calls = _triples(view_arguments([inner, outer], read_only_root=False))
    assert [call for call in calls if call[0] == "--bind"] == [
        ("--bind", "/var/lib", "/data"),
        ("--bind", "/var/cache", "/data/inner"),
    ]
    assert not [call for call in calls if call[0] == "--tmpfs"]


def test_links_are_followed_to_where_the_mount_belongs(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    mount = Mount(source=Path("/var"), target=tmp_path / "link" / "x")
    calls = _triples(view_arguments([mount], read_only_root=True))
    assert ("--bind", "/var", str(tmp_path / "real" / "x")) in calls
    assert ("--symlink", "real", str(tmp_path / "link")) in calls
    assert ("--remount-ro", "/") in calls
