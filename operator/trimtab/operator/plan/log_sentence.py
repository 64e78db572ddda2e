"""What the end of a container's log comes down to, in a sentence: pods log JSON lines, and people read statuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_PLAIN_LINES = 3
_MAX_CHARS = 2000
_LEVELS = ("error", "critical")
# In the order in which they say most.
_DETAILS = ("reason", "exception", "error", "why", "errors")
_SPEAKS_FOR_ITSELF = ("job_misconfigured", "uncaught exception", "uncaught exception in a thread")
"""What happened is in the detail; the event only says how it was noticed."""


def log_sentence(tail: str) -> str:
    """The last error that the log tells of. One that tells of none has its last lines of plain text shown, which is
    where interpreters and servers complain; lines that only say what was done are nobody's last words.
    """
    plain: list[str] = []
    said = ""
    for line in tail.splitlines():
        entry = _entry(line)
        if entry is None:
            plain.append(line.rstrip())
        elif entry.get("level") in _LEVELS:
            said, plain = _told(entry), []
    if said:
        return said[:_MAX_CHARS]
    return "\n".join([line for line in plain if line][-_PLAIN_LINES:])[-_MAX_CHARS:]


def _entry(line: str) -> Mapping[str, Any] | None:
    """A line of our logs; None for any other."""
    if not line.startswith("{"):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("event"), str) else None


def _told(entry: Mapping[str, Any]) -> str:
    event = str(entry["event"])
    detail = next((_flat(name, entry[name]) for name in _DETAILS if entry.get(name)), "")
    if not detail:
        return event
    return detail if event in _SPEAKS_FOR_ITSELF else f"{event.replace('_', ' ')}: {detail}"


def _flat(name: str, value: object) -> str:
    """Of a traceback, its last line, which names the exception; groups draw a frame around theirs."""
    if name != "exception":
        return str(value)
    lines = [line.strip(" |+-") for line in str(value).splitlines()]
    return next((line for line in reversed(lines) if line), "")
