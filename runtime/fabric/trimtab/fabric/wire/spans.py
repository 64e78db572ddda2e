"""Who produced each token of a trajectory, and with which weights, as run-length spans.

One list says both, so that the two can never disagree: a span of model tokens has the weight version that sampled it,
fixed when the request was sent, and no other span has one. Another policy's words are environment tokens to this one,
and so are not an echo: that is what this policy sampled in this episode and is trained on in another row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from trimtab.fabric.wire.errors import InvalidFieldError
from trimtab.fabric.wire.values import Version

MAX_TOKENS = 1 << 22
MAX_SPANS = 1 << 16

Item = TypeVar("Item", bound=np.generic)


class Producer(IntEnum):
    """Who wrote a token. Only model tokens are trained on and have a logprob."""

    PROMPT = 0
    MODEL = 1
    ENVIRONMENT = 2
    ECHO = 3
    """Sampled by this policy in this episode, and trained in another row of it."""


class Span(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A run of tokens with one producer and one weight version."""

    length: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    producer: Producer
    version: Version | None = None

    def __post_init__(self) -> None:
        if (self.producer is Producer.MODEL) != (self.version is not None):
            raise InvalidFieldError("a model span has a weight version, any other span has none", field="version")


Spans = Annotated[tuple[Span, ...], Meta(max_length=MAX_SPANS)]


def model_span(length: int, *, version: int) -> Span:
    return Span(length, Producer.MODEL, version)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same runs with equal neighbours joined: what a workflow appends turn by turn, made compact."""
    result: list[Span] = []
    for span in spans:
        if result and (result[-1].producer, result[-1].version) == (span.producer, span.version):
            result[-1] = Span(result[-1].length + span.length, span.producer, span.version)
        else:
            result.append(span)
    return tuple(result)


def total_length(spans: Iterable[Span]) -> int:
    return sum(span.length for span in spans)


def model_length(spans: Iterable[Span]) -> int:
    return sum(span.length for span in spans if span.producer is Producer.MODEL)


def model_versions(spans: Iterable[Span]) -> tuple[int, int] | None:
    """The oldest and the newest weight version that sampled a token, None where the model wrote nothing."""
    versions = [span.version for span in spans if span.version is not None]
    return (min(versions), max(versions)) if versions else None


def model_mask(spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """True for every token the model wrote: the loss mask."""
    mask = np.zeros(total_length(spans), dtype=np.bool_)
    for place, _ in _model_runs(spans):
        mask[place] = True
    return mask


def token_versions(spans: Sequence[Span]) -> npt.NDArray[np.int64]:
    """The weight version of every token, -1 where the model did not write it."""
    versions = np.full(total_length(spans), -1, dtype=np.int64)
    for place, span in _model_runs(spans):
        assert span.version is not None
        versions[place] = span.version
    return versions


def over_tokens(spans: Sequence[Span], values: npt.NDArray[Item]) -> npt.NDArray[Item]:
    """What is said of each token that the model wrote, at its place among all tokens; 0 at the others."""
    if len(values) != model_length(spans):
        raise ValueError(f"{len(values)} values for {model_length(spans)} model tokens")
    placed = np.zeros(total_length(spans), dtype=values.dtype)
    taken = 0
    # Runs are copied whole: a mask would look at every token.
    for place, span in _model_runs(spans):
        placed[place] = values[taken : taken + span.length]
        taken += span.length
    return placed


def _model_runs(spans: Iterable[Span]) -> Iterator[tuple[slice, Span]]:
    """Where in the row each run of the model's tokens stands."""
    at = 0
    for span in spans:
        if span.producer is Producer.MODEL:
            yield slice(at, at + span.length), span
        at += span.length
