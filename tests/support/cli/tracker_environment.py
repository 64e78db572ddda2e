"""The libraries of trackers."""

from __future__ import annotations

from pathlib import Path

from tests.support.own_environment import packages_of, python_with

_REQUIREMENTS = Path(__file__).with_name("tracker_requirements.txt")


def trackers_python() -> Path:
    """A Python that has them, and with it MLflow's server."""
    return python_with(_REQUIREMENTS, name="trackers")


def trackers_packages() -> Path:
    """Where its packages lie."""
    return packages_of(trackers_python())
