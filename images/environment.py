"""`python -m images.environment ROLE`: builds what is in one image by the Dockerfile's own steps, without a container
engine, and tries it with nothing else installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.fabric.pod import EXIT_MISCONFIGURED

ROOT = Path(__file__).resolve().parents[1]
_INSTALL_TIMEOUT_S = 30 * 60.0
_TRY_TIMEOUT_S = 300.0

# Imports every module of the packages, as a module that is imported in a rare case is missing just then. Those that
# need a library of the user's have to say which.
_IMPORT_ALL = """
import importlib, pkgutil, sys
packages, users = (names.split(",") for names in sys.argv[1:])
for package in packages:
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if module.name in users:
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                if "pip install" not in str(error):
                    raise
        elif not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


class EnvironmentBroken(RuntimeError):
    """The image could not be built, or its entry point does not work in it."""


@dataclass(frozen=True, kw_only=True)
class Image:
    entry_point: str
    packages: tuple[str, ...]
    """What its pods run."""
    without: tuple[str, ...]
    """Modules that would only make it large."""
    with_users_libraries: tuple[str, ...] = ()
    """Modules of ours that work with a library which users add to the image."""


IMAGES = {
    "operator": Image(
        entry_point="trimtab.operator",
        packages=("trimtab.operator", "trimtab.kube", "trimtab.api", "trimtab.fabric"),
        without=("torch", "transformers", "numba", "pyarrow"),
    ),
    "dataflow": Image(
        entry_point="trimtab.dataflow",
        packages=("trimtab.dataflow", "trimtab.api", "trimtab.fabric"),
        without=("torch", "transformers", "numba", "kopf", "kubernetes"),
    ),
    "rollout": Image(
        entry_point="trimtab.rollout",
        packages=("trimtab.rollout", "trimtab.weights", "trimtab.api", "trimtab.fabric"),
        without=("kopf", "kubernetes", "anthropic"),
        with_users_libraries=("trimtab.rollout.worlds.openenv",),
    ),
    "trainer": Image(
        entry_point="trimtab.trainer",
        packages=("trimtab.trainer", "trimtab.weights", "trimtab.api", "trimtab.fabric"),
        without=("kopf", "kubernetes", "anthropic", "math_verify"),
    ),
    "tracking": Image(
        entry_point="trimtab.cli.tracking.cluster",
        packages=("trimtab.cli.tracking", "trimtab.cli.chronicle", "trimtab.api", "trimtab.fabric"),
        without=("torch", "transformers", "numba", "kopf", "kubernetes", "pandas"),
    ),
}


def build_environment(role: str, folder: Path) -> Path:
    """Runs images/install.sh; returns the environment's Python. Raises EnvironmentBroken."""
    scripts = sysconfig.get_path("scripts")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
        "PATH": os.pathsep.join((scripts, os.environ.get("PATH", ""))),
        "PYTHON": sys.executable,
    }
    _run([str(ROOT / "images/install.sh"), role, str(folder)], environment, timeout_s=_INSTALL_TIMEOUT_S, cwd=ROOT)
    return folder / "bin/python"


def try_environment(role: str, python: Path) -> None:
    """Raises EnvironmentBroken if the pods of the image could not start in it, or it has what it should not."""
    image, bare = IMAGES[role], {"PATH": "/usr/bin:/bin"}
    named = (",".join(names) for names in (image.packages, image.with_users_libraries))
    _run([str(python), "-P", "-c", _IMPORT_ALL, *named], bare, timeout_s=_TRY_TIMEOUT_S, cwd=python.parent)
    for module in image.without:
        found = subprocess.run([str(python), "-c", f"import {module}"], env=bare, capture_output=True, timeout=60)
        if found.returncode == 0:
            raise EnvironmentBroken(f"{role} has {module}, which none of its pods needs: see images/locks/{role}.txt")
    started = subprocess.run(
        [str(python), "-P", "-m", image.entry_point], env=bare, capture_output=True, text=True, timeout=_TRY_TIMEOUT_S
    )
    # It comes as far as reading its settings, of which there are none.
    if started.returncode != EXIT_MISCONFIGURED or "TRIMTAB_NATS__SERVERS" not in started.stderr:
        raise EnvironmentBroken(f"{image.entry_point} ended with {started.returncode}:\n{started.stderr[-4000:]}")


def size_in_bytes(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*"))


def _run(command: Sequence[str], environment: dict[str, str], *, timeout_s: float, cwd: Path) -> None:
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        raise EnvironmentBroken(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", nargs="*", choices=[*IMAGES, []], help="all of them if none is named")
    for role in parser.parse_args().role or IMAGES:
        with tempfile.TemporaryDirectory(prefix=f"trimtab-{role}-") as folder:
            target = Path(folder) / "environment"
            try_environment(role, build_environment(role, target))
            sys.stdout.write(f"{role}: works, {size_in_bytes(target) / 1e6:.0f} MB\n")


if __name__ == "__main__":
    main()
