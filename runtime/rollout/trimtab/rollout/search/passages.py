"""What every search does: words in, the best passages out, and how a policy reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trimtab.rollout.workflows.errors import WorkflowError

MAX_QUERY_CHARS = 1000
"""A policy may write a query without end. What is behind this is not searched for."""
_MAX_PASSAGE_CHARS = 4000


class SearchFailed(WorkflowError):
    """Nobody knows what there is to be found. That is not the same as nothing."""

    kind = "search-failed"


@dataclass(frozen=True, kw_only=True)
class Passage:
    text: str
    title: str = ""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Passage:
        """From `{"title", "text"}`, or from `{"contents"}`, whose first line is the title. Raises ValueError."""
        text, title = document.get("text"), document.get("title", "")
        if text is None and isinstance(document.get("contents"), str):
            first, _, rest = document["contents"].partition("\n")
            title, text = (first.strip().strip('"'), rest) if rest else ("", first)
        if not isinstance(text, str) or not isinstance(title, str):
            raise ValueError(  # noqa: TRY004 - a document of the user's, not an argument
                f"it has {', '.join(sorted(map(str, document))) or 'nothing'}: `text` is needed, with or without "
                "`title`, or `contents`, all of them text"
            )
        return cls(text=text, title=title)

    @property
    def shown(self) -> str:
        """As the policy reads it."""
        text = self.text.strip()[:_MAX_PASSAGE_CHARS]
        return f"{self.title}: {text}" if self.title else text


class Search(Protocol):
    async def find(self, query: str, /) -> Sequence[Passage]:
        """The best first; none where nothing fits. Raises SearchFailed."""


def shown(passages: Sequence[Passage]) -> str:
    """A line for each."""
    return "\n".join(passage.shown for passage in passages) or "Nothing found."
