"""Sizes of a step pair in our modes, in other formats and in theory, and the proof that ours come back bit for bit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from benchmarks.weights.limits import Tally
from benchmarks.weights.peers import peer_bytes
from benchmarks.weights.simulation import StepPair
from trimtab.weights.codec.blocks import Codec, decode_block, encode_change
from trimtab.weights.codec.change import find_change
from trimtab.weights.layout import StateLayout

MEMORYLESS, CONTEXT = "memoryless_entropy", "context_entropy"
MODEL_PARAMETERS = 14.8e9


class WrongRoundTrip(AssertionError):
    """A block that did not come back bit for bit: the codec is broken, and no figure of it counts."""


@dataclass(frozen=True)
class Sizes:
    """Bytes by format over any number of tensors, the counts that limits follow from, and blocks by mode of auto."""

    bytes: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally.empty)
    modes: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(self.bytes + other.bytes, self.tally + other.tally, self.modes + other.modes)

    @property
    def by_format(self) -> dict[str, float]:
        """Limits included."""
        return {**self.bytes, MEMORYLESS: self.tally.memoryless_bytes, CONTEXT: self.tally.context_bytes}

    def scaled_mb(self) -> dict[str, float]:
        """For a model of MODEL_PARAMETERS."""
        scale = MODEL_PARAMETERS / self.tally.weights / 1e6
        return {name: round(size * scale, 1) for name, size in self.by_format.items()}


def measure(pair: StepPair, layout: StateLayout) -> Sizes:
    """Ours by the blocks of the layout, others by its tensors, all of which are bf16."""
    sizes: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    for block in layout.blocks:
        base, target = pair.base[block.start : block.end], pair.target[block.start : block.end]
        change = find_change(base, target, width=block.element.width)
        if change is None:
            modes["unchanged"] += 1
            continue
        out = np.empty_like(target)
        for codec in Codec:
            encoded = encode_change(base, change, block.element, codec=codec)
            decode_block(encoded.mode, base, encoded.payload, block.element, out)
            if not np.array_equal(out, target):
                raise WrongRoundTrip(f"block {block.index} in mode {encoded.mode} came back different")
            sizes[codec.value] += len(encoded.payload)
            if codec is Codec.AUTO:
                modes[encoded.mode.value] += 1
    tally = Tally.empty()
    for tensor in layout.tensors:
        old, new = (content[tensor.start : tensor.end].view(np.uint16) for content in (pair.base, pair.target))
        sizes.update(peer_bytes(old, new))
        tally += Tally.of(old, new)
    return Sizes(sizes, tally, modes)
