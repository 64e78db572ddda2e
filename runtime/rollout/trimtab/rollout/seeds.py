"""Seeds for everything that is drawn in an episode, each a function of the task's seed and of what it is for."""

from __future__ import annotations

import hashlib


def derived_seed(seed: int, *path: str | int) -> int:
    """A seed of 31 bits that no other path shares but by chance. Sums would: sample 0's turn 1 is sample 1's turn 0."""
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little") >> 1
