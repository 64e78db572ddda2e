"""Prepares a real SGLang that runs on a CPU, in an environment of its own in the user's cache folder, once.

SGLang pins its own torch and asks for kernels of NVIDIA GPUs. Server, scheduler, radix cache and HTTP surface work
without them, on x86 and Arm. With a GPU, install SGLang as its own pages say instead.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import click

VERSION = "0.5.21"
_SGLANG = (f"sglang=={VERSION}", "sglang-kernel==0.4.7")
_REQUIREMENTS = Path(__file__).parent / "requirements.txt"
_INSTALL_S = 3600.0
_COMMON_OPS = '''"""Stands in for the compiled kernels of sglang-kernel: what its loader calls, doing nothing."""

import torch

_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("init_cpu_threads_env(str cpu_ids) -> str")
_library.define("initialize(int size, int rank) -> ()")
_library.impl("init_cpu_threads_env", lambda cpu_ids: "", "CompositeExplicitAutograd")
_library.impl("initialize", lambda size, rank: None, "CompositeExplicitAutograd")
'''


_PINNING = ("layers.py", "lora.py", "backend/torch_backend.py")
"""Of SGLang's adapters: they pin memory for copies to a GPU, which torch refuses where there is none. Nothing else
keeps them from being computed on a CPU.
"""


class EnvironmentFailed(RuntimeError):
    """The environment could not be made."""


def sglang_interpreter() -> Path:
    """The Python of the environment, which is made if it is not there. A first time takes minutes and 7 GB."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "trimtab" / f"sglang-{VERSION}"
    python = folder / "bin" / "python"
    marker = folder / "prepared"
    wanted = "\n".join([*_SGLANG, _REQUIREMENTS.read_text(), _COMMON_OPS])
    if not marker.is_file() or marker.read_text() != wanted:
        _prepare(folder, python)
        marker.write_text(wanted)  # last: half an environment is made anew
    _leave_unpinned(folder)
    return python


def _leave_unpinned(folder: Path) -> None:
    """Does nothing where it was done before."""
    (adapters,) = folder.glob("lib/python3.*/site-packages/sglang/srt/lora")
    for name in _PINNING:
        text = (adapters / name).read_text()
        unpinned = text.replace("pin_memory=True", "pin_memory=False").replace(".pin_memory()", "")
        if unpinned != text:
            # A file of its own first: uv's cache may have the old one under another name.
            fresh = adapters / f"{name}.unpinned"
            fresh.write_text(unpinned)
            fresh.replace(adapters / name)


def _prepare(folder: Path, python: Path) -> None:
    click.echo(f"installing SGLang {VERSION} for the CPU into {folder}, once (7 GB, minutes)", err=True)
    _uv("venv", "--clear", "--python", sys.executable, str(folder))
    _uv("pip", "install", "--python", str(python), "--no-deps", *_SGLANG)
    # Compiled now, not by three processes at once when the server first starts.
    _uv("pip", "install", "--python", str(python), "--compile-bytecode", "--requirement", str(_REQUIREMENTS))
    (packages,) = folder.glob("lib/python3.*/site-packages")
    (packages / "common_ops.py").write_text(_COMMON_OPS)
    if platform.machine() == "aarch64":
        # PyPI's torchvision for Arm is built for CUDA; this file alone needs its compiled part.
        (packages / "torchvision" / "_meta_registrations.py").write_text("")


def _uv(*arguments: str) -> None:
    completed = subprocess.run([sys.executable, "-m", "uv", *arguments], stdout=sys.stderr, timeout=_INSTALL_S)
    if completed.returncode != 0:
        raise EnvironmentFailed(f"`uv {' '.join(arguments[:2])}` failed; it needs PyPI the first time")


if __name__ == "__main__":
    click.echo(sglang_interpreter())
