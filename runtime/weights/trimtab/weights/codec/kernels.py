"""Compiled inner loops: numba functions that release the interpreter lock, so that blocks are coded on all cores."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numba
import numpy as np

Integer: TypeAlias = "int | np.integer[Any]"
_config: Any = numba.config
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def kernel(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compile on first use. The result is kept on disk where that is possible; a read-only image goes without."""
    before = _config.CACHE_DIR
    # numba looks at the file of the function alone, and would go on using kernels whose inlined parts have changed.
    _config.CACHE_DIR = str(Path(before or Path(__file__).parent / "__pycache__") / _digest_of_sources())
    try:
        compiled: Any = numba.njit(nogil=True, cache=True)(function)
    except (RuntimeError, OSError):
        compiled = numba.njit(nogil=True)(function)
    finally:
        _config.CACHE_DIR = before
    return cast(Callable[Arguments, Result], compiled)


@lru_cache
def _digest_of_sources() -> str:
    hasher = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        hasher.update(source.read_bytes())
    return f"kernels-{hasher.hexdigest()[:16]}"


def inlined(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A part of kernels, compiled into each that calls it."""
    return cast(Callable[Arguments, Result], numba.njit(inline="always")(function))
