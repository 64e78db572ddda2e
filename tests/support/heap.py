"""Spares the garbage collector what collection leaves: objects of all tests and imports, which live as long as the run
and would be looked through again and again.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    # Extension modules look for leaks when they are unloaded, and call what is frozen one.
    gc.unfreeze()
