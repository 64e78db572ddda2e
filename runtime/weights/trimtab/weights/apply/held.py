"""What a host copy holds, and the small file that says so. Replacing that file moves the copy to its next version."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from trimtab.weights.apply.copy_files import CopyPlaces
from trimtab.weights.apply.durable import rename
from trimtab.weights.apply.errors import DamagedCopy, InvalidUpdate
from trimtab.weights.digests import root_digest
from trimtab.weights.layout import StateLayout


class Held(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of the weights: the XXH3 of every block of the layout, and the root over them."""

    epoch: int
    version: int
    root: str
    digests: tuple[bytes, ...]

    def __str__(self) -> str:
        return f"version {self.version} of epoch {self.epoch}"

    def check(self, layout: StateLayout) -> None:
        """Raises InvalidUpdate when this cannot be a version of the layout."""
        if len(self.digests) != len(layout.blocks):
            raise InvalidUpdate(f"{self} has {len(self.digests)} digests, its layout has {len(layout.blocks)} blocks")
        if self.root != (root := root_digest(layout, self.digests)):
            raise InvalidUpdate(f"{self} has the root {self.root}, its digests give {root}")


class CopyState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the state file."""

    format: Literal[1] = 1
    layout_digest: str
    held: Held


def write_state(places: CopyPlaces, state: CopyState) -> None:
    with places.next_state.open("wb") as file:
        file.write(msgspec.json.encode(state))
        file.flush()
        os.fsync(file.fileno())
    rename(places.next_state, places.state)


def read_state(places: CopyPlaces) -> CopyState | None:
    """None when there is none; DamagedCopy when it cannot be read."""
    try:
        return msgspec.json.decode(places.state.read_bytes(), type=CopyState)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedCopy(f"{places.state} is not the state of a host copy: {error}") from None
