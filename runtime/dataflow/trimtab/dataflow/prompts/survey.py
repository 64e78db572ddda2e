"""One pass over a source before the job starts: every row can be sent, and which of them are short enough."""

from __future__ import annotations

from array import array

import numpy as np
import structlog

from trimtab.dataflow.prompts.order import MixedSource
from trimtab.dataflow.prompts.progress import Progress
from trimtab.dataflow.prompts.prompt import BLOCK_ROWS, PromptRows, PromptSourceError
from trimtab.dataflow.prompts.validation import TokenLimit

_log = structlog.get_logger(__name__)


def surveyed(
    rows: PromptRows,
    *,
    field: str,
    name: str,
    weight: float,
    prompt_column: str,
    limit: TokenLimit | None,
    progress: Progress,
) -> MixedSource:
    """The source as it will be mixed, and its field in the manifest. Rows of one without end are checked as they come,
    so it can have no limit.
    """
    if rows.length is None:
        if limit is not None:
            raise PromptSourceError(
                f"{field}: maxPromptTokens cannot be held with a generator without end; give it a __len__, or make its "
                "prompts short enough and leave maxPromptTokens out"
            )
        return MixedSource(name=name, weight=weight, rows=rows)
    if rows.length == 0:
        raise PromptSourceError(f"{field} holds no prompt")
    kept = array("q")
    for start in range(0, rows.length, BLOCK_ROWS):
        stop = min(rows.length, start + BLOCK_ROWS)
        progress.note("checking prompts", source=name, rows=start, of=rows.length)
        prompts = rows.read(start, stop)
        if limit is not None:
            fits = limit.fitting([prompt.content[prompt_column] for prompt in prompts])
            kept.extend(start + number for number, fit in enumerate(fits) if fit)
    skipped = rows.length - len(kept) if limit is not None else 0
    _log.info("prompts_read", source=name, prompts=rows.length - skipped, skipped=skipped)
    if not skipped:
        return MixedSource(name=name, weight=weight, rows=rows)
    if not kept:
        assert limit is not None
        raise PromptSourceError(
            f"{field}: all {skipped} prompts are longer than maxPromptTokens {limit.max_tokens}; raise it, or remove "
            "the source"
        )
    return MixedSource(name=name, weight=weight, rows=rows, kept=np.array(kept, dtype=np.int64), skipped=skipped)
