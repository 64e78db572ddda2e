"""Reads an answer that an engine gives in parts. SGLang repeats in each all that came before, or where it was started
with --incremental-streaming-output says only what is new; the built-in engine says what is new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trimtab.rollout.engines import responses
from trimtab.rollout.engines.contract import (
    EngineError,
    EngineUnavailable,
    Finish,
    Generated,
    Progress,
    SamplingSettings,
    WeightRun,
    refusal,
)

_MAX_TEXT = 500
_PER_TOKEN = ("output_token_logprobs", "output_top_logprobs")


class StreamedAnswer:
    """`progress` is told of everything but the last part, which ends the answer."""

    def __init__(self, progress: Progress, *, truncated: SamplingSettings | None) -> None:
        self._progress = progress
        self._truncated = truncated
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._runs: tuple[WeightRun, ...] | None = None
        self._end: Generated | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        """Raises an EngineError for what is no part of the answer."""
        if "error" in event:
            raise _failure(event["error"])
        try:
            news, ended = _news(event, have=len(self._token_ids))
            if ended:
                # SGLang accounts for all tokens here, and for none on the way.
                meta = event["meta_info"]
                total = int(meta["output_token_logprobs_length"])
                self._runs = responses.weight_runs(meta.get("weight_versions"), tokens=total)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(f"/generate streamed something else than the contract says: {error!r}") from None
        part = responses.generated(news, truncated=self._truncated)
        self._token_ids += part.token_ids
        self._logprobs += part.logprobs
        if ended:
            self._end = part
        elif part.token_ids:
            self._progress(part)

    def whole(self) -> Generated:
        """Raises EngineUnavailable where the end never came."""
        if self._end is None:
            raise EngineUnavailable(f"/generate: the stream broke off after {len(self._token_ids)} tokens")
        return replace(
            self._end,
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs),
            weight_runs=self._runs,
        )


def _news(event: Mapping[str, Any], *, have: int) -> tuple[dict[str, Any], bool]:
    """The answer that the new tokens alone would be, and whether it is the end."""
    meta = dict(event["meta_info"])
    # Not how many are listed: SGLang may have added to the list when it sends it, and what else it says is of before.
    total = int(meta["output_token_logprobs_length"])
    for name in _PER_TOKEN:
        if name in meta:
            meta[name] = _new_ones(meta[name], name, have=have, total=total)
    if meta.get("weight_versions") is not None:
        meta["weight_versions"] = [
            {**span, "start": max(0, int(span["start"]) - have), "end": int(span["end"]) - have}
            for span in meta["weight_versions"]
            if int(span["end"]) > have
        ]
    ended = meta["finish_reason"] is not None
    unfinished: Finish = "abort"
    meta["finish_reason"] = meta["finish_reason"] if ended else {"type": unfinished}
    return {"meta_info": meta}, ended


def _new_ones(listed: Sequence[Any], name: str, *, have: int, total: int) -> Sequence[Any]:
    if len(listed) >= total >= have:
        return listed[have:total]
    if len(listed) == total - have:
        return listed
    raise ValueError(f"{name} has {len(listed)} after {have} of {total}")


def _failure(error: Any) -> EngineError:
    """What went wrong behind the status 200 of a stream."""
    told = error if isinstance(error, Mapping) else {}
    status = told.get("code")
    text = str(told.get("message", error))[:_MAX_TEXT]
    return refusal("/generate", status if isinstance(status, int) else 500, text)
