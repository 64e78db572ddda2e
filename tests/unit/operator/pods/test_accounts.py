"""Templates and the operator's own service account."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.support.operator.scene import tiny_job
from trimtab.api.job import RLJob
from trimtab.operator.plan.children import pool_of
from trimtab.operator.pods.sites import PodCluster, prepare_site
from trimtab.operator.reconcile.ownership import Objected
from trimtab.operator.settings import OperatorSettings

SETTINGS = OperatorSettings.model_validate(
    {
        "nats": {"servers": ["nats://nats:4222"]},
        "shared_nats_account": "all-pods-trust-one-another",
        "object_store": {"bucket": "b", "region": "r"},
        "images": "image",
        "lease": {"namespace": "trimtab-system"},
        "service_account": "trimtab-operator",
    }
)


class _Reached(Exception):
    pass


class _Cluster:
    async def credentials(self, job: dict[str, Any]) -> None:
        raise _Reached


async def _prepare(namespace: str, template: dict[str, Any]) -> None:
    manifest = tiny_job(pools=[{"name": "home", "template": template}])
    manifest["metadata"] |= {"namespace": namespace, "uid": "u"}
    job = RLJob.model_validate(manifest)
    item = {"kind": "RolloutPool", "metadata": {"name": "p", "namespace": namespace, "uid": "p"}}
    await prepare_site(
        cast(PodCluster, _Cluster()),
        settings=SETTINGS,
        job=manifest,
        typed_job=job,
        owner=item,
        typed=pool_of(job, job.spec.pools[0], None),
        role="rollout",
    )


@pytest.mark.parametrize("field", ["serviceAccountName", "serviceAccount"])
async def test_no_template_takes_the_operators_rights(field: str) -> None:
    with pytest.raises(Objected, match="name another"):
        await _prepare("trimtab-system", {"spec": {field: "trimtab-operator"}})
    # An account of this name elsewhere is another account.
    with pytest.raises(_Reached):
        await _prepare("team", {"spec": {field: "trimtab-operator"}})
    with pytest.raises(_Reached):
        await _prepare("trimtab-system", {"spec": {field: "other"}})
