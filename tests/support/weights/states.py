"""Small models whose every version can be computed again, for tests that publish and pull them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.weights.codec.change import Bytes
from trimtab.weights.layout import Block, StateLayout

LAYOUT = StateLayout.of(
    {
        "embed": ("BF16", (2000, 64)),
        "layers.0.up": ("BF16", (512, 256)),
        "layers.0.norm": ("F32", (256,)),
        "scale": ("F8_E4M3", (3, 5)),
        "empty": ("BF16", (0, 7)),
    }
)


@dataclass(frozen=True)
class TrainedState:
    """The weights after `version` steps of a run: each moves about one weight in fifty to a neighbour."""

    version: int
    run: int = 0
    layout: StateLayout = LAYOUT

    def content(self) -> Bytes:
        rng = np.random.default_rng(self.run)
        data = rng.standard_normal(-(-self.layout.data_bytes // 2)).astype(np.float32).view(np.uint32) >> 16
        weights = data.astype(np.uint16)
        for step in range(self.version):
            moves = np.random.default_rng((self.run, step)).random(weights.size)
            weights = weights + (moves < 0.01) - (moves > 0.99)
        return weights.astype(np.uint16).view(np.uint8)[: self.layout.data_bytes]

    def read(self, block: Block, out: Bytes) -> None:
        np.copyto(out, self.content()[block.start : block.end])

    def file(self) -> bytes:
        return self.layout.prefix + self.content().tobytes()
