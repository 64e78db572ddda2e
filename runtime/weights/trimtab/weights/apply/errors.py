"""What can go wrong with a host copy, by what its owner does about it."""

from __future__ import annotations


class CopyInUse(Exception):
    """Another process, or another object of this one, has the copy open."""


class DamagedCopy(Exception):
    """The copy is not what it says it is. It has to be built again from the store."""


class DamagedJournal(Exception):
    """A journal that cannot be applied. Past its commit point the copy is lost with it."""


class InvalidUpdate(ValueError):
    """An update or a first fill that its caller has put together wrongly. The copy is untouched."""
