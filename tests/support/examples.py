"""An example's manifest at test size, as tests ask for it."""

from __future__ import annotations

from collections.abc import Callable

from examples.curves.record import Run

Learn = Callable[..., Run]
