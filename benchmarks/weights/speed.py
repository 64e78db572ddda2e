"""How fast one thread codes and applies deltas, next to what no delta can do without: comparing and copying."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.report import interleaved
from benchmarks.weights.simulation import StepPair
from benchmarks.weights.sizes import WrongRoundTrip
from trimtab.weights.codec.blocks import Codec, Encoded, decode_block, encode_change
from trimtab.weights.codec.change import Bytes, elements, find_change
from trimtab.weights.digests import block_digest
from trimtab.weights.layout import ELEMENT_TYPES

ROUNDS = 9
_ELEMENT = ELEMENT_TYPES["BF16"]


@dataclass(frozen=True)
class Published:
    """What a pool gets for one block."""

    encoded: Encoded
    digest: bytes


def publish(pair: StepPair, codec: Codec) -> Published:
    """What a publisher does with a block."""
    change = find_change(pair.base, pair.target, width=_ELEMENT.width)
    if change is None:
        raise ValueError("a step that changed nothing has no speed; take a larger learning rate")
    return Published(encode_change(pair.base, change, _ELEMENT, codec=codec), block_digest(pair.target))


def apply(published: Published, live: Bytes, scratch: Bytes) -> None:
    """What a pool does with it: decode beside the live block, verify, and then change the live block."""
    encoded = published.encoded
    positions = decode_block(encoded.mode, live, encoded.payload, _ELEMENT, scratch)
    if block_digest(scratch) != published.digest:
        raise WrongRoundTrip(f"a block in mode {encoded.mode} has another digest than published")
    if positions is None:
        np.copyto(live, scratch)
    else:
        elements(live, _ELEMENT.width)[positions] = elements(scratch, _ELEMENT.width)[positions]


def measure_speed(pairs: Sequence[StepPair]) -> dict[str, float]:
    """GB/s of weights, medians over rounds. Every contender works through all the pairs, more than a core caches."""
    total = sum(pair.base.nbytes for pair in pairs)
    lives = [pair.base.copy() for pair in pairs]
    scratch = np.empty_like(pairs[0].base)

    def rate(work: Callable[[], None]) -> float:
        started = time.perf_counter()
        work()
        return total / (time.perf_counter() - started) / 1e9

    def publish_all(codec: Codec) -> None:
        for pair in pairs:
            publish(pair, codec)

    def apply_all(ready: Sequence[Published]) -> None:
        for published, live in zip(ready, lives, strict=True):
            apply(published, live, scratch)

    def apply_from_base(ready: Sequence[Published]) -> float:
        for pair, live in zip(pairs, lives, strict=True):
            np.copyto(live, pair.base)
        return rate(partial(apply_all, ready))

    def compare_all() -> None:
        for pair in pairs:
            np.flatnonzero(elements(pair.base, _ELEMENT.width) != elements(pair.target, _ELEMENT.width))

    def copy_all() -> None:
        for pair in pairs:
            np.copyto(scratch, pair.base)

    contenders: dict[str, Callable[[], float]] = {}
    for codec in (Codec.FAST, Codec.COMPACT):
        ready = [publish(pair, codec) for pair in pairs]
        contenders[f"{codec}_encode"] = partial(rate, partial(publish_all, codec))
        contenders[f"{codec}_apply"] = partial(apply_from_base, ready)
    contenders |= {"numpy_compare": partial(rate, compare_all), "memcpy": partial(rate, copy_all)}
    interleaved(contenders, rounds=1)  # compiles what is not compiled yet
    results = interleaved(contenders, rounds=ROUNDS)
    return {name: round(statistics.median(rates), 3) for name, rates in results.items()}
