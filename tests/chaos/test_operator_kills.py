"""The operator behind a faulty API server, killed again and again while jobs change: nothing is started twice, no
deletion is lost, and in the end everything is as asked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.operator.fault_proxy import FaultProxy
from tests.support.operator.forked_operator import prepare
from tests.support.operator.kill_run import run_kills
from tests.support.sizes import FULL, Sizes
from tests.support.template_process import template_process
from trimtab.api.crd import custom_resource_definitions
from trimtab.embedded.kube.assets import ControlPlaneAssets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.settings import environment_for
from trimtab.kube.access import load_access

_FAULTY_SHARE = 0.08


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, str]]:
    with EmbeddedNatsWithAccounts(tmp_path / "nats") as nats:
        dialled = environment_for(nats.settings)
        yield {
            **{name.replace("TRIMTAB_", "TRIMTAB_NATS__", 1): value for name, value in dialled.items()},
            "TRIMTAB_NATS_ACCOUNTS__SEED_FILE": str(nats.operator_seed_file),
            "TRIMTAB_OBJECT_STORE__BUCKET": "none",
        }


@pytest.mark.slow
async def test_kills_and_faults_leave_no_trace(
    assets: ControlPlaneAssets, servers: dict[str, str], sizes: Sizes, tmp_path: Path
) -> None:
    with ControlPlane(tmp_path / "plane", assets=assets) as plane:
        plane.install(custom_resource_definitions())
        user = "system:serviceaccount:churn:trimtab-operator"
        access = load_access(plane.kubeconfig(user=user, groups=()))
        chance = random.Random(2)
        proxy = FaultProxy(plane, access, folder=tmp_path / "proxy", share=_FAULTY_SHARE, chance=chance)
        with template_process(prepare) as template:
            async with proxy:
                await run_kills(
                    template, plane, servers, folder=tmp_path, kills=sizes.operator_kills, seed=3, server=proxy.server
                )
        assert proxy.faults
        # A few kills are over before each kind of fault has come by.
        if sizes is FULL:
            assert {"409", "410", "429", "500", "lost answer", "cut watch"} <= proxy.faults.keys()
