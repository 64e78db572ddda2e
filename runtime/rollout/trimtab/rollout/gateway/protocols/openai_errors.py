"""Errors as all of OpenAI's endpoints say them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.rollout.gateway.exchange import BudgetSpent, GatewayError, Refused, Unavailable, UnknownRole
from trimtab.rollout.gateway.protocols.request_body import FieldRefused
from trimtab.rollout.gateway.protocols.surface import NotFound, TooLarge, Unauthorized

_REQUEST = "invalid_request_error"
_KINDS: Mapping[type[GatewayError], tuple[int, str, str | None]] = {
    Unauthorized: (401, _REQUEST, "invalid_api_key"),
    NotFound: (404, _REQUEST, "unknown_url"),
    UnknownRole: (404, _REQUEST, "model_not_found"),
    TooLarge: (413, _REQUEST, "request_too_large"),
    Refused: (400, _REQUEST, None),
    # What an account without money is told: agents know that waiting does not help.
    BudgetSpent: (429, "insufficient_quota", "insufficient_quota"),
    Unavailable: (503, "server_error", "service_unavailable"),
}
_OTHER = (500, "server_error", "internal_error")


def openai_failure(error: GatewayError) -> tuple[int, Mapping[str, Any]]:
    """Status and body."""
    status, kind, code = next((told for cls, told in _KINDS.items() if isinstance(error, cls)), _OTHER)
    param = "model" if isinstance(error, UnknownRole) else error.field if isinstance(error, FieldRefused) else None
    return status, {"error": {"message": error.message, "type": kind, "param": param, "code": code}}
