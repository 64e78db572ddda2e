"""Which of the kernel's layers stand around programs here, why the others do not, and whether that is enough.

None needs privileges, but a container runtime may forbid each of them. One that is missing is told, not hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class LayerName(StrEnum):
    NAMESPACES = "namespaces"
    """Nothing else of the machine is there to be seen: no file, process, network or message."""
    LANDLOCK = "landlock"
    """What is there cannot be read, written or sent a signal to, unless it is the program's own."""
    SECCOMP = "seccomp"
    """No sockets, no keys, no reaching into other processes, and a permit for each process that it starts."""


@dataclass(frozen=True)
class Layer:
    name: LayerName
    missing: str = ""
    """Why it does not hold; nothing where it does."""

    @property
    def holds(self) -> bool:
        return not self.missing


def too_little(layers: Sequence[Layer]) -> str:
    """Why nothing may be run behind these layers; nothing where it may.

    Either of namespaces and Landlock keeps a program from the files and the processes of the worker. Seccomp refuses
    what they know nothing of, some sockets and keys, and bounds how many processes there are.
    """
    missing = {layer.name: layer.missing for layer in layers if not layer.holds}
    if LayerName.SECCOMP not in missing and not {LayerName.NAMESPACES, LayerName.LANDLOCK} <= set(missing):
        return ""
    reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
    return (
        f"too little would hold programs here ({reasons}): let the container make namespaces, use nodes with Linux "
        "6.12 or newer whose container runtime lets pods use Landlock, or set workflow.sandbox.runtimeClassName"
    )


def described(layers: Sequence[Layer]) -> str:
    """In a sentence, for a status."""
    holding = ", ".join(layer.name for layer in layers if layer.holds)
    lacking = "; ".join(f"{layer.name}: {layer.missing}" for layer in layers if not layer.holds)
    return f"{holding or 'nothing'}" + (f" (missing {lacking})" if lacking else "")
