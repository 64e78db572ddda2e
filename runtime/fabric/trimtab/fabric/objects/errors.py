"""What can go wrong with object storage, named after what happened. Every error names bucket and key; nothing from
boto3 gets past this package. Which faults of boto3 become which error decides whether a write can happen twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.exceptions import HTTPClientError as BotoTransportError
from urllib3.exceptions import HTTPError

# Not OSError: a full disk under a download is not the store's.
StoreFault = ClientError | BotoCoreError | HTTPError | ConnectionError
STORE_FAULTS = (ClientError, BotoCoreError, HTTPError, ConnectionError)
_MISSING_TO_AWS = "is not authorized to perform: s3:ListBucket on resource"
_UNAUTHORIZED = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
)
_BAD_DIGEST = frozenset({"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})
_BUSY = frozenset({"SlowDown", "RequestTimeout", "ConditionalRequestConflict", "OperationAborted", "TooManyRequests"})


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


def translated(fault: StoreFault, *, doing: str) -> ObjectStoreError:
    if isinstance(fault, ClientError):
        return _from_answer(fault, doing=doing)
    message = f"{doing}: {type(fault).__name__}: {fault}"
    if isinstance(fault, NoCredentialsError | PartialCredentialsError):
        return StoreUnauthorized(message)
    transport = isinstance(fault, BotoConnectionError | BotoTransportError | HTTPError | ConnectionError)
    if transport or type(fault).__name__ in ("IncompleteReadError", "ResponseStreamingError"):
        return StoreUnavailable(message)
    return StoreRefused(message)


def _from_answer(fault: ClientError, *, doing: str) -> ObjectStoreError:
    error = fault.response.get("Error", {})
    code = str(error.get("Code", ""))
    status = int(fault.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    message = f"{doing}: {code} ({status}): {error.get('Message', '')}"
    if code == "NoSuchBucket":
        return StoreRefused(f"{message}; create the bucket first")
    if status == 412 or code == "PreconditionFailed":
        return PreconditionFailed(message)
    if status == 404:
        return ObjectNotFound(message)
    if status == 403 and _MISSING_TO_AWS in message:
        # Amazon tells one who may read an object and not list the bucket in this way that there is none.
        return ObjectNotFound(message)
    if status in (401, 403) or code in _UNAUTHORIZED:
        return StoreUnauthorized(message)
    if code in _BAD_DIGEST:
        return ChecksumMismatch(message)
    if status >= 500 or status in (408, 429) or code in _BUSY:
        return StoreUnavailable(message)
    return StoreRefused(message)
