"""Blocks so small that a tiny model has many of them, for several ranks to own. Publisher and pools must cut alike, so
every process of a test has to ask for it.
"""

from __future__ import annotations

from trimtab.weights import layout


def cut_small_blocks(size: int) -> None:
    """For the rest of this process's life: meant for processes of a test's own."""
    layout.BLOCK_BYTES = size
    layout._OWN_BLOCK_BYTES = size // 2
