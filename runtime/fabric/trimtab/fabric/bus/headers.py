"""What may travel in a subject or a header. nats-py trims and rewrites odd header values without a word, which would
change a deduplication id; here they are refused instead.
"""

from __future__ import annotations

import re
from functools import lru_cache

from trimtab.fabric.bus.errors import InvalidName

Headers = dict[str, str]

_SUBJECT = re.compile(r"[^\s*>]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PREAMBLE = len(b"NATS/1.0\r\n\r\n")
_PER_LINE = len(b": \r\n")
MAX_SUBJECT_CHARS = 1024


@lru_cache(maxsize=4096)
def checked_subject(subject: str) -> str:
    """A subject one can publish to: tokens without blanks or wildcards, none empty."""
    if not _SUBJECT.fullmatch(subject) or len(subject) > MAX_SUBJECT_CHARS or "" in subject.split("."):
        raise InvalidName(f"subject {subject[:80]!r} is empty, too long, or has an empty token, a blank or a wildcard")
    return subject


def checked_headers(headers: Headers) -> Headers:
    for name, value in headers.items():
        _check_header_name(name)
        if value != value.strip() or "\r" in value or "\n" in value:
            raise InvalidName(f"value of header {name!r} has a line break, or blanks at an end")
    return headers


@lru_cache(maxsize=1024)
def _check_header_name(name: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise InvalidName(f"header name {name[:80]!r} has characters outside the HTTP token set")


def encoded_size(headers: Headers) -> int:
    """Bytes the headers take on the wire; the server counts them against max_payload."""
    lines = sum(len(name) + (len(value) if value.isascii() else len(value.encode())) for name, value in headers.items())
    return _PREAMBLE + lines + _PER_LINE * len(headers)
