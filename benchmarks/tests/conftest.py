"""What holds for every test holds for those of the benchmarks too, also when they run alone."""

from __future__ import annotations

import tests.conftest  # noqa: F401
