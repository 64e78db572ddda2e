"""A cluster on this machine with everything that is real: control plane, node, operator, NATS with accounts, object
storage by role. One team's job trains in it, and another team has a job whose credentials it can read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.operator.operator_process import OperatorProcess, grant_cluster_role
from tests.support.operator.quickstart_manifest import in_a_cluster
from tests.support.operator.scene import Scene, sleeping_job
from tests.support.quickstart_job import make_quickstart
from trimtab.api.crd import custom_resource_definitions
from trimtab.devcluster.cluster import DevelopmentCluster
from trimtab.embedded.kube.assets import control_plane_assets, controller_assets
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.embedded.seaweedfs import JOB_ROLE_ARN, EmbeddedSeaweed
from trimtab.fabric.settings import environment_for
from trimtab.kube.access import load_access
from trimtab.kube.resources import RLJOBS, SECRETS

GOOD, BAD = "good", "bad"
"""The names of the teams' namespaces and of their jobs."""
_TOOL_S = 2.0
_ENDLESS = 1_000_000
_START_S = 600.0


@dataclass(frozen=True, kw_only=True)
class TwoTeams:
    nats: EmbeddedNatsWithAccounts
    store: EmbeddedSeaweed
    good: Scene
    bad: Scene
    job: dict[str, Any]
    """The good team's."""

    @property
    def steps(self) -> int:
        return int((self.good.must_get(RLJOBS, GOOD).get("status") or {}).get("step") or 0)

    def uid(self, scene: Scene, name: str) -> str:
        return str(scene.must_get(RLJOBS, name)["metadata"]["uid"])

    def stolen(self) -> dict[str, str]:
        """What the hostile team finds in its own namespace: its job's Secret, in base64."""
        return dict(self.bad.must_get(SECRETS, f"{BAD}-credentials")["data"])


@contextmanager
def two_teams(folder: Path) -> Iterator[TwoTeams]:
    with ExitStack() as stack:
        nats = stack.enter_context(EmbeddedNatsWithAccounts(folder / "nats"))
        store = stack.enter_context(EmbeddedSeaweed(folder / "seaweedfs"))
        plane = stack.enter_context(ControlPlane(folder / "plane", assets=control_plane_assets()))
        plane.install(custom_resource_definitions())
        grant_cluster_role(plane)
        for team in (GOOD, BAD):
            plane.kubectl("create", "namespace", team)
        environment = {
            "TRIMTAB_NATS_ACCOUNTS__SEED_FILE": str(nats.operator_seed_file),
            "TRIMTAB_STORAGE_ROLES__STS__ROLE_ARN": JOB_ROLE_ARN,
            "TRIMTAB_LEASE__DURATION_S": "60",
        }
        for section, settings in (("NATS", nats.address), ("OBJECT_STORE", store.settings)):
            dialled = environment_for(settings)
            environment |= {f"TRIMTAB_{section}__{name.removeprefix('TRIMTAB_')}": dialled[name] for name in dialled}
        operator = OperatorProcess(folder / "operator", plane=plane, environment=environment).start()
        stack.callback(operator.kill)
        stack.enter_context(
            DevelopmentCluster(
                folder / "cluster", control_plane=plane, assets=controller_assets(), host_paths_allowed=True
            )
        )
        access = load_access(plane.kubeconfig())
        good, bad = (Scene(plane=plane, namespace=team, access=access, operator=operator) for team in (GOOD, BAD))
        job = in_a_cluster(make_quickstart(folder / "quickstart", name=GOOD, max_steps=_ENDLESS))
        # Its agents wait for a tool, as real ones do: a job that takes all of two cores would measure who gets those.
        job["spec"]["workflow"] = {
            "entrypoint": "slow_tool:SlowTool", "source": {"path": "/quickstart"}, "args": {"tool_seconds": _TOOL_S}
        }  # fmt: skip
        teams = TwoTeams(nats=nats, store=store, good=good, bad=bad, job=job)
        good.apply(job)
        bad.apply(sleeping_job(BAD))
        good.until(lambda: teams.steps, lambda steps: steps >= 3, timeout_s=_START_S)
        bad.until(lambda: bad.get(SECRETS, f"{BAD}-credentials"), bool, timeout_s=_START_S)
        yield teams
