"""boto3's exceptions as our types: pure, because which ones are repeated decides whether a write can happen twice."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.exceptions import HTTPClientError as BotoTransportError
from urllib3.exceptions import HTTPError

from trimtab.fabric.objects.errors import (
    ChecksumMismatch,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    StoreRefused,
    StoreUnauthorized,
    StoreUnavailable,
)

# Not OSError: a full disk under a download is not the store's.
StoreFault = ClientError | BotoCoreError | HTTPError | ConnectionError
STORE_FAULTS = (ClientError, BotoCoreError, HTTPError, ConnectionError)

_UNAUTHORIZED = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
)
_BAD_DIGEST = frozenset({"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})
_BUSY = frozenset({"SlowDown", "RequestTimeout", "ConditionalRequestConflict", "OperationAborted", "TooManyRequests"})


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
    if status in (401, 403) or code in _UNAUTHORIZED:
        return StoreUnauthorized(message)
    if code in _BAD_DIGEST:
        return ChecksumMismatch(message)
    if status >= 500 or status in (408, 429) or code in _BUSY:
        return StoreUnavailable(message)
    return StoreRefused(message)
