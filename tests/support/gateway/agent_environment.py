"""The libraries that others write agents with."""

from __future__ import annotations

from pathlib import Path

from tests.support.own_environment import packages_of, python_with

_REQUIREMENTS = Path(__file__).with_name("agent_requirements.txt")


def agents_python() -> Path:
    """A Python that has them."""
    return python_with(_REQUIREMENTS, name="agents")


def agents_packages() -> Path:
    """Where its packages lie, for agents that run in the worker."""
    return packages_of(agents_python())
