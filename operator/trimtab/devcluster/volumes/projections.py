"""Files that volumes make of ConfigMaps, Secrets, the pod's own fields and tokens; and writing them so that a reader
sees all of the old or all of the new.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.devcluster.container.environment import Source, SourceKind, Sources
from trimtab.devcluster.pod.spec import PodFacts, containers

_DEFAULT_MODE = 0o644
_TOKEN_LIFETIME_S = 3600
PROJECTED = ("configMap", "secret", "downwardAPI", "projected")


@dataclass(frozen=True)
class TokenWish:
    """A service account's token as a volume asks for it; no audience means the API server's."""

    audience: str
    lifetime_s: int


@dataclass(frozen=True, kw_only=True)
class File:
    content: bytes
    mode: int


def parts(volume: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What a projected volume is made of; a plain ConfigMap, Secret or downward volume is one part."""
    if "projected" in volume:
        for part in volume["projected"].get("sources") or ():
            yield from part.items()
    else:
        yield from ((kind, volume[kind]) for kind in PROJECTED if kind in volume)


def sources_of(volume: Mapping[str, Any]) -> set[Source]:
    return {_source(kind, part) for kind, part in parts(volume) if kind in ("configMap", "secret")}


def tokens_of(volume: Mapping[str, Any]) -> set[TokenWish]:
    return {_wish(part) for kind, part in parts(volume) if kind == "serviceAccountToken"}


def files_of(
    volume: Mapping[str, Any], *, facts: PodFacts, sources: Sources, tokens: Mapping[TokenWish, str]
) -> dict[str, File]:
    """By path inside the volume."""
    whole: Mapping[str, Any] = next(volume[kind] for kind in PROJECTED if kind in volume)
    mode = int(whole.get("defaultMode") or _DEFAULT_MODE)
    files: dict[str, File] = {}
    for kind, part in parts(volume):
        match kind:
            case "configMap" | "secret":
                files |= _keys(kind, part, sources=sources, mode=mode)
            case "downwardAPI":
                files |= _fields(part, facts=facts, mode=mode)
            case "serviceAccountToken":
                files[part["path"]] = File(content=tokens[_wish(part)].encode(), mode=mode)
            case _:
                raise ValueError(f"volume {volume['name']}: a projected {kind} is not known on this node")
    return files


def write_files(folder: Path, files: Mapping[str, File]) -> None:
    """Each file is a link through `..data`, which is moved to a folder with the new content in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "..data"
    before = data.readlink() if data.is_symlink() else None
    if before is not None and _read_files(folder / before) == {path: file.content for path, file in files.items()}:
        return
    fresh = folder / f"..{uuid.uuid4().hex}"
    for path, file in files.items():
        target = fresh / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(mode=0o600, exist_ok=False)
        target.write_bytes(file.content)
        target.chmod(file.mode)
    fresh.mkdir(exist_ok=True)
    moving = folder / "..data_next"
    moving.unlink(missing_ok=True)
    moving.symlink_to(fresh.name)
    moving.replace(data)
    wanted = {path.split("/")[0] for path in files}
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in wanted:
            entry.unlink()
    for name in wanted:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    if before is not None:
        shutil.rmtree(folder / before)


def _read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _keys(kind: str, part: Mapping[str, Any], *, sources: Sources, mode: int) -> dict[str, File]:
    source, optional = _source(kind, part), bool(part.get("optional"))
    content = sources.read(source, optional=optional) or {}
    if not part.get("items"):
        return {key: File(content=value, mode=mode) for key, value in content.items()}
    files = {}
    for item in part["items"]:
        value = sources.value(source, item["key"], optional=optional)
        if value is not None:
            files[item["path"]] = File(content=value, mode=int(item.get("mode") or mode))
    return files


def _fields(part: Mapping[str, Any], *, facts: PodFacts, mode: int) -> dict[str, File]:
    by_name = {container["name"]: container for _, container in containers(facts.pod)}
    files = {}
    for item in part.get("items") or ():
        if "fieldRef" in item:
            value = facts.field(item["fieldRef"]["fieldPath"])
        else:
            reference = item["resourceFieldRef"]
            value = facts.resource(reference, container=by_name[reference["containerName"]])
        files[item["path"]] = File(content=value.encode(), mode=int(item.get("mode") or mode))
    return files


def _source(kind: str, part: Mapping[str, Any]) -> Source:
    known: SourceKind = "ConfigMap" if kind == "configMap" else "Secret"
    # A secret volume says secretName where everything else says name.
    return Source(known, part.get("name") or part["secretName"])


def _wish(part: Mapping[str, Any]) -> TokenWish:
    lifetime = int(part.get("expirationSeconds") or _TOKEN_LIFETIME_S)
    return TokenWish(audience=str(part.get("audience") or ""), lifetime_s=lifetime)
