"""One revision of a repository in huggingface_hub's own cache, so that what other programs have fetched is not fetched
again, with every file's digest compared with the name that the hub gave it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from trimtab.api.source_uri import HubSource
from trimtab.fabric.sources.errors import SourceAway, SourceRefused

_log = structlog.get_logger(__name__)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT = re.compile(r"[0-9a-f]{40}")
_CHUNK_BYTES = 1 << 20
_REFUSED = (401, 403)


@dataclass(frozen=True, kw_only=True)
class HubAccess:
    """Where the hub is and who asks; what is absent, huggingface_hub finds as it usually does: HF_ENDPOINT, HF_TOKEN,
    HF_HOME, HF_HUB_OFFLINE."""

    endpoint: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return f"HubAccess(endpoint={self.endpoint!r})"


def fetch_from_hub(
    source: HubSource, access: HubAccess, *, field: str, files: Sequence[str], but: Sequence[str], checked: Path
) -> Path:
    """The folder of the snapshot. `checked` remembers which files have been compared. Raises SourceRefused or
    SourceAway."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise SourceRefused(
            f"{field}: {source.uri} is fetched with huggingface_hub, which is not installed: pip install"
            " huggingface_hub, or name a folder"
        ) from None
    told = f"{field}: {source.uri}"
    endpoint = access.endpoint or huggingface_hub.constants.ENDPOINT
    cache = huggingface_hub.constants.HF_HUB_CACHE
    try:
        folder = Path(
            str(
                huggingface_hub.snapshot_download(
                    source.repository,
                    repo_type=source.kind,
                    revision=source.revision,
                    endpoint=access.endpoint,
                    token=access.token,
                    allow_patterns=list(files),
                    ignore_patterns=list(but) or None,
                )
            )
        )
    except huggingface_hub.errors.GatedRepoError:
        raise SourceRefused(
            f"{told}: access to it is granted on {endpoint} by its owners: ask there, and give a token in HF_TOKEN or,"
            " in a cluster, spec.hub.tokenSecret"
        ) from None
    except huggingface_hub.errors.RevisionNotFoundError:
        raise SourceRefused(f"{told}: {endpoint} has the repository, but not this revision") from None
    except huggingface_hub.errors.RepositoryNotFoundError:
        raise SourceRefused(
            f"{told}: {endpoint} has no such {source.kind} that we may see: correct its name or, if it is private, give"
            " a token in HF_TOKEN or, in a cluster, spec.hub.tokenSecret"
        ) from None
    except huggingface_hub.errors.HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in _REFUSED:
            raise SourceRefused(
                f"{told}: {endpoint} answered {error.response.status_code}: give a token that may read it in HF_TOKEN"
                " or, in a cluster, spec.hub.tokenSecret"
            ) from None
        raise _away(told, source, endpoint, cache, error) from None
    except (huggingface_hub.errors.LocalEntryNotFoundError, OSError) as error:
        raise _away(told, source, endpoint, cache, error) from None
    # Whichever library it speaks HTTP with.
    except huggingface_hub.errors.HTTPError as error:  # type: ignore[attr-defined]
        raise _away(told, source, endpoint, cache, error) from None
    if not any(path.is_file() for path in folder.rglob("*")) or not (folder / source.path).exists():
        raise SourceRefused(f"{told}: has no file {source.path or 'of a model in transformers format'} there")
    _compare(folder, checked, told=told)
    return folder


def _away(told: str, source: HubSource, endpoint: str, cache: str, error: Exception) -> SourceAway:
    download = f"hf download {source.repository}{' --repo-type dataset' if source.kind == 'dataset' else ''}"
    if source.revision is not None:
        download += f" --revision {source.revision}"
    return SourceAway(
        f"{told}: is not whole in the cache {cache}, and {endpoint} gave no answer to go on with"
        f" ({type(error).__name__}). With a network, try again; behind a mirror, set HF_ENDPOINT or spec.hub.endpoint;"
        f" without any, fill the cache elsewhere by `{download}` and bring it here (HF_HOME), or name a folder or s3://"
    )


def _compare(folder: Path, checked: Path, *, told: str) -> None:
    """Each file of a snapshot is a link to one that is called by its digest. One that is not what it is called is
    removed, and the next attempt fetches it."""
    known = _known(checked)
    for link in sorted(folder.rglob("*")):
        if not link.is_file():
            continue
        blob = link.resolve()
        stat = blob.stat()
        now = (stat.st_size, stat.st_mtime_ns)
        if known.get(blob.name) == now:
            continue
        found = _digest(blob, like=blob.name)
        if found is not None and found != blob.name:
            blob.unlink()
            link.unlink(missing_ok=True)
            raise SourceAway(f"{told}: {link.name} had arrived damaged: its digest is {found}; it was removed")
        known[blob.name] = now
    checked.parent.mkdir(parents=True, exist_ok=True)
    fresh = checked.with_name(f"{checked.name}.new")
    fresh.write_bytes(msgspec.json.encode(known))
    fresh.replace(checked)


def _known(checked: Path) -> dict[str, tuple[int, int]]:
    try:
        return msgspec.json.decode(checked.read_bytes(), type=dict[str, tuple[int, int]])
    except (OSError, msgspec.DecodeError):
        return {}


def _digest(file: Path, *, like: str) -> str | None:
    """As its name has it: a SHA-256 of large files, git's digest of small ones; None where a mirror has other names."""
    if _SHA256.fullmatch(like):
        digest = hashlib.sha256()
    elif _GIT.fullmatch(like):
        digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    else:
        return None
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
