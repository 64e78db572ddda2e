"""What can go wrong with object storage. Every error names bucket and key; nothing from boto3 gets past this
package.
"""

# named after what happened, as callers read them in an except clause

from __future__ import annotations

from collections.abc import Sequence


class ObjectStoreError(Exception):
    """Root of everything trimtab.fabric.objects raises."""


class ObjectNotFound(ObjectStoreError):
    """There is no object under the key."""


class PreconditionFailed(ObjectStoreError):
    """A conditional write lost: the object exists, is gone, or is not the version that was expected."""


class ObjectChanged(ObjectStoreError):
    """The object was replaced while it was being read."""


class ChecksumMismatch(ObjectStoreError):
    """The bytes are not the ones that were written."""


class ObjectTooLarge(ObjectStoreError):
    """The object exceeds the number of bytes the caller was ready to take."""

    def __init__(self, message: str, *, size: int, limit: int) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class StoreTimeout(ObjectStoreError):
    """The deadline passed. A write may have happened all the same."""


class StoreUnavailable(ObjectStoreError):
    """The store could not be reached or could not serve; trying later may help."""


class StoreUnauthorized(ObjectStoreError):
    """The store refused our credentials, or they are missing."""


class StoreRefused(ObjectStoreError):
    """The store refused the request for a reason that has no type of its own."""


class StoreUnfit(ObjectStoreError):
    """The store lacks something that correctness depends on; `missing` says what."""

    def __init__(self, message: str, *, missing: Sequence[str]) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class InvalidKey(ObjectStoreError, ValueError):
    """A key that stores spell, normalise or refuse differently from one another."""
