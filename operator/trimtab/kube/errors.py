"""What can go wrong with a call to the API server; nothing from aiohttp gets past this package."""

from __future__ import annotations

import http
from collections.abc import Mapping
from typing import Any


class KubeError(Exception):
    """Root of everything trimtab.kube raises about a call."""


class Unreachable(KubeError):
    """No answer: no connection, a broken one, or the deadline. A write may or may not have happened."""


class TooLarge(Unreachable):
    """The answer has more bytes than we take."""


class ApiError(KubeError):
    """The server answered and did not do it. `reason` is the machine-readable one, such as AlreadyExists."""

    def __init__(self, message: str, *, code: int, reason: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s
        """How long the server asks us to wait, where it says so."""


class Unauthorized(ApiError):
    """The server does not know who we are: the token or the certificate is wrong or has expired."""


class Forbidden(ApiError):
    """The server knows us and does not let us."""


class NotFound(ApiError):
    """The object, or the kind itself, does not exist."""


class Conflict(ApiError):
    """The object changed since it was read, or a precondition does not hold; read it again and decide anew."""


class AlreadyExists(Conflict):
    """An object of that name is there already."""


class Gone(ApiError):
    """The resourceVersion or the continue token is too old: list again."""


class Invalid(ApiError):
    """The server does not accept the request as it is; sending it again cannot help."""


class TooManyRequests(ApiError):
    """The server has too much to do, or a disruption budget does not allow an eviction now."""


class ServerError(ApiError):
    """The server failed. A write may or may not have happened."""


_BY_CODE: dict[int, type[ApiError]] = {
    http.HTTPStatus.BAD_REQUEST: Invalid,
    http.HTTPStatus.UNAUTHORIZED: Unauthorized,
    http.HTTPStatus.FORBIDDEN: Forbidden,
    http.HTTPStatus.NOT_FOUND: NotFound,
    http.HTTPStatus.CONFLICT: Conflict,
    http.HTTPStatus.GONE: Gone,
    http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE: Invalid,
    http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE: Invalid,
    http.HTTPStatus.UNPROCESSABLE_ENTITY: Invalid,
    http.HTTPStatus.TOO_MANY_REQUESTS: TooManyRequests,
}


_LONGEST_MESSAGE = 4096
_LONGEST_WAIT_S = 3600.0


def api_error(status: Mapping[str, Any], *, code: int, call: str = "", retry_after_s: float | None = None) -> ApiError:
    """The error for an answer's code and its Status object, which may be empty."""
    reason = _text(status.get("reason"))
    message = _text(status.get("message")) or f"the server answered {code}"
    details = status.get("details")
    if retry_after_s is None and isinstance(details, Mapping):
        asked = details.get("retryAfterSeconds")
        retry_after_s = float(asked) if isinstance(asked, int) and asked > 0 else None
    if retry_after_s is not None:
        retry_after_s = min(retry_after_s, _LONGEST_WAIT_S)
    if code == http.HTTPStatus.CONFLICT and reason == "AlreadyExists":
        kind: type[ApiError] = AlreadyExists
    elif code >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = ServerError
    else:
        kind = _BY_CODE.get(code, ApiError)
    return kind(f"{call}: {message}" if call else message, code=code, reason=reason, retry_after_s=retry_after_s)


def _text(said: object) -> str:
    """It goes into logs and statuses, and may be another team's server's."""
    return said[:_LONGEST_MESSAGE] if isinstance(said, str) else ""
