"""What the sandbox of this pod says of its layers, for heartbeats.

It is asked again and again, because it may be started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.wire.member import SandboxLayers
from trimtab.rollout.sandbox.client import PodSandbox
from trimtab.rollout.sandbox.contract import SandboxFailed
from trimtab.rollout.sandbox.layers import Layer

_EVERY_S = 60.0
_AGAIN = FullJitter(base_s=0.5, cap_s=30.0)
_MAX_REASON = 300


class SandboxReport:
    """`now` is None until the sandbox has said something, and where there is none."""

    def __init__(self, sandbox: PodSandbox | None) -> None:
        self._sandbox = sandbox
        self.now: SandboxLayers | None = None

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while self._sandbox is not None:
            try:
                self.now = told(await self._sandbox.layers())
                failures = 0
                await asyncio.sleep(_EVERY_S)
            except SandboxFailed:
                # Whoever runs a program hears of it too.
                await asyncio.sleep(_AGAIN.delay_s(failures))
                failures += 1


def told(layers: Sequence[Layer]) -> SandboxLayers:
    return SandboxLayers(
        holding=tuple(layer.name for layer in layers if layer.holds),
        missing={layer.name: layer.missing[:_MAX_REASON] for layer in layers if not layer.holds},
    )
