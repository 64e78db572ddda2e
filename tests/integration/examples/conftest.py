"""Examples at test size: their own manifests with fewer steps, run as `trimtab run` runs them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.curves.record import Run
from examples.curves.running import prepare, run_manifest, variants, write_manifest
from tests.support.examples import Learn
from tests.support.polling import patiently

_TIMEOUT_S = 280.0


@pytest.fixture(scope="module")
def learn(tmp_path_factory: pytest.TempPathFactory) -> Learn:
    """Runs one manifest of an example for some steps."""
    prepared: dict[str, Path] = {}

    def run(
        example: str, *, variant: str = "job", steps: int, target: float | None = None, **smaller: dict[str, Any]
    ) -> Run:
        """`smaller` replaces fields of sections of the spec."""
        if example not in prepared:
            prepared[example] = tmp_path_factory.mktemp(example)
            prepare(example, prepared[example], seed=0)
        file = write_manifest(variants(example)[variant], prepared[example], seed=0, steps=steps)
        manifest = yaml.safe_load(file.read_text())
        for section, fields in smaller.items():
            manifest["spec"][section] |= fields
        if target is not None:
            manifest["spec"]["targetReward"] = target
        file.write_text(yaml.safe_dump(manifest))
        # Of another run of the same manifest, which this one would go on with.
        shutil.rmtree(file.parent / ".trimtab", ignore_errors=True)

        async def in_time() -> Run:
            async with patiently(_TIMEOUT_S):
                return await run_manifest(file, seed=0)

        return asyncio.run(in_time())

    return run
