"""Compiled inner loops: numba functions that release the interpreter lock, so that blocks are coded on all cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numba
import numpy as np

Integer: TypeAlias = "int | np.integer[Any]"
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def kernel(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compile on first use. The result is kept on disk where that is possible; a read-only image goes without."""
    try:
        compiled: Any = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        compiled = numba.njit(nogil=True)(function)
    return cast(Callable[Arguments, Result], compiled)


def inlined(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A part of kernels, compiled into each that calls it."""
    return cast(Callable[Arguments, Result], numba.njit(inline="always")(function))
