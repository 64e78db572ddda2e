"""What was done in a run, as those read it who were not there. It never grows beyond what a role can read."""

from __future__ import annotations

_SHORT = 200


class RunMemory:
    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._steps: list[tuple[str, str, str]] = []

    def keep(self, *, tool: str, given: str, result: str) -> None:
        self._steps.append((tool, given, result))

    @property
    def uses(self) -> int:
        """Of tools; proposed answers are none."""
        return sum(tool != "answer" for tool, _, _ in self._steps)

    @property
    def shown(self) -> str:
        """All steps in order. Where they are too long, those before the last are cut, the oldest first; then the oldest
        are left out.
        """
        lines = [_line(number, *step) for number, step in enumerate(self._steps, start=1)]
        for place, step in enumerate(self._steps[:-1]):
            if _length(lines) <= self._max_chars:
                break
            tool, given, result = step
            lines[place] = _line(place + 1, tool, _cut(given), _cut(result))
        while len(lines) > 1 and _length(lines) > self._max_chars:
            del lines[0]
        return "\n".join(lines)[-self._max_chars :] or "nothing"


def _line(number: int, tool: str, given: str, result: str) -> str:
    return f"{number}. {tool}: {given}\n   gave: {result}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


def _length(lines: list[str]) -> int:
    return sum(map(len, lines)) + len(lines)
