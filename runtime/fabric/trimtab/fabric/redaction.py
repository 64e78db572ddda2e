"""Secrets never reach a log: values we were told, values under names that give them away, and credentials inside text.

Redaction works on values before they are rendered, because quoting in JSON or in a repr would hide a secret from a
search; the usual disguises of a registered secret (as repr, JSON and URLs quote it) are registered with it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from pydantic import SecretBytes, SecretStr

REDACTED = "***"
_MAX_DEPTH = 12
# Lines of a multi-line secret (a credentials file, a private key) count on their own from this length.
_MIN_LINE = 12

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset({"password", "passwd", "passphrase", "authorization", "cookie"})
# In this domain tokens are counted and secrets are Kubernetes objects with names: only a name that ends so holds one.
_SECRET_ENDINGS = frozenset({"secret", "token", "credential", "credentials"})
_SECRET_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("apikey",)})

# Every repetition is bounded or stops at a character it cannot start with: log text is not ours, and must not cost more
# than its length.
_USERINFO = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,20}://)[^\s/?#\"'<>]*@")
_BEARER = re.compile(r"\b(bearer|basic)\s{1,4}[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_ASSIGNMENT = re.compile(
    r"((?:password|passwd|secret|api[_-]?key|access[_-]?key)[\"']?\s{0,4}[=:]\s{0,4}[\"']?)[^\s\"',;&})\]]+",
    re.IGNORECASE,
)


_WITHIN: ContextVar[tuple[str, ...]] = ContextVar("secrets of a task", default=())


class Redactor:
    """Knows a process's secrets and takes them out of anything that is about to be shown."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[str, ...] = ()

    def register(self, secrets: Iterable[str]) -> None:
        """From now on these values are taken out wherever they occur."""
        with self._lock:
            disguises = set(self._known)
            for secret in secrets:
                for part in (secret, *(line for line in secret.splitlines() if len(line) >= _MIN_LINE)):
                    disguises |= _disguises(part)
            # Longest first, so that no secret is cut short by another that is part of it.
            self._known = tuple(sorted(disguises - {""}, key=len, reverse=True))

    @contextmanager
    def within(self, secrets: Iterable[str]) -> Iterator[None]:
        """In what this task says, and what it starts, these are taken out as well: for secrets that are not ours, which
        may be any text and must not change what is said about others."""
        disguises = {disguise for secret in secrets for disguise in _disguises(secret)} - {""}
        token = _WITHIN.set(tuple(sorted({*_WITHIN.get(), *disguises}, key=len, reverse=True)))
        try:
            yield
        finally:
            _WITHIN.reset(token)

    def text(self, text: str) -> str:
        """The text without secrets."""
        for secret in (*self._known, *_WITHIN.get()):
            if secret in text:
                text = text.replace(secret, REDACTED)
        if "://" in text:
            text = _USERINFO.sub(rf"\1{REDACTED}@", text)
        if " " in text:
            text = _BEARER.sub(rf"\1 {REDACTED}", text)
        if "=" in text or ":" in text:
            text = _ASSIGNMENT.sub(rf"\1{REDACTED}", text)
        return text

    def value(self, value: Any, *, depth: int = 0) -> Any:
        """The value as plain data without secrets. Anything else becomes its repr now, not when it is rendered."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if type(value) is str:
            return self.text(value)
        if isinstance(value, SecretStr | SecretBytes):
            return REDACTED
        if depth >= _MAX_DEPTH:
            return "…"
        if isinstance(value, Mapping):
            return self.mapping(value, depth=depth + 1)
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(item, depth=depth + 1) for item in value]
        return self.text(str(value) if isinstance(value, str) else repr(value))

    def mapping(self, values: Mapping[Any, Any], *, depth: int = 0) -> dict[str, Any]:
        """A map without secrets: also those that only their name gives away."""
        return {
            self.text(str(key)): (
                REDACTED
                if not (item is None or isinstance(item, bool)) and names_a_secret(str(key))
                else self.value(item, depth=depth)
            )
            for key, item in values.items()
        }


@lru_cache(maxsize=4096)
def names_a_secret(name: str) -> bool:
    """Whether something of this name is a secret by the look of it: db_password and apiKey are, token_count is not."""
    words = tuple(word.lower() for word in _WORDS.findall(name))
    if not words:
        return False
    return (
        not _SECRET_WORDS.isdisjoint(words)
        or words[-1] in _SECRET_ENDINGS
        or words[-1:] in _SECRET_PAIRS
        or words[-2:] in _SECRET_PAIRS
        or words[-3:-1] in _SECRET_PAIRS  # access_key_id
    )


def _disguises(secret: str) -> set[str]:
    return {
        secret,
        repr(secret)[1:-1],
        repr(secret.encode("utf-8", "surrogateescape"))[2:-1],
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret, safe="", errors="surrogateescape"),
        quote_plus(secret, errors="surrogateescape"),
    }
