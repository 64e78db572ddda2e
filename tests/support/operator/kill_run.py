"""One run of kills during churn, as long as the caller likes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.support.operator.churn import Churn, Nodes, Witness
from tests.support.operator.forked_operator import ForkedOperator
from tests.support.operator.operator_process import OperatorProcess, grant_namespaced_role
from tests.support.polling import eventually
from tests.support.template_process import TemplateProcess
from trimtab.api import labels
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.kube.access import load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import NAMESPACES, PODS, RLJOBS

_NAMESPACE = "churn"
_WANTED: dict[str, int | None] = {"a": 3, "b": 0, "c": None, "d": 1}
_SETTLES_IN_S = 400.0


async def run_kills(
    template: TemplateProcess,
    plane: ControlPlane,
    servers: dict[str, str],
    *,
    folder: Path,
    kills: int,
    seed: int,
    server: str,
) -> None:
    """`server` is where the operator finds the API. The API server itself is killed twice on the way."""
    chance = random.Random(seed)
    async with KubeClient(load_access(plane.kubeconfig())) as client:
        await client.create(NAMESPACES, {"metadata": {"name": _NAMESPACE}})
        user = grant_namespaced_role(plane, _NAMESPACE)
        operator = ForkedOperator(
            template,
            folder / "operator",
            plane=plane,
            # The same name each time, as otherwise each restart waits for the lease to run out.
            environment={**servers, "TRIMTAB_IDENTITY": "one", "TRIMTAB_LEASE__DURATION_S": "15"},
            user=user,
            home=_NAMESPACE,
            server=server,
        )
        pods = Reflector(client, PODS, namespace=_NAMESPACE, label_selector=labels.JOB)
        witness = Witness(pods)
        churn = Churn(client, _NAMESPACE, tuple(_WANTED), chance)
        watching = asyncio.create_task(pods.run())
        collecting = asyncio.create_task(churn.collect_garbage())
        nodes = asyncio.create_task(Nodes(client, _NAMESPACE, chance).run())
        churning = asyncio.create_task(churn.run())
        tasks = [watching, collecting, nodes, churning]
        try:
            for number in range(kills):
                if number in (kills // 3, 2 * kills // 3):
                    plane.apiserver.kill()
                ready = operator.log.count("operator_ready") if operator.log_file.exists() else 0
                operator.start("--namespace", _NAMESPACE)
                await eventually(lambda: _is_up(operator, ready), timeout_s=60)  # noqa: B023 - called in this turn
                await asyncio.sleep(chance.uniform(0.0, 1.5))
                operator.kill()
            await _ended(churning)
            operator.start("--namespace", _NAMESPACE)
            tasks.append(asyncio.create_task(_keep_running(operator)))
            await churn.settle(_WANTED)
            expected = {
                pod
                for job, replicas in _WANTED.items()
                if replicas is not None
                for pod in (f"{job}-dataflow-0", f"{job}-solver-trainer-0")
            }

            def as_asked() -> bool:
                names = {key.name for key in pods}
                others = sorted(name.split("-rollout-")[0] for name in names - expected)
                return expected <= names and others == ["a-home"] * 3 + ["d-home"]

            await eventually(as_asked, timeout_s=_SETTLES_IN_S)

            async def gone() -> bool:
                return await client.get_or_none(RLJOBS, "c", namespace=_NAMESPACE) is None

            await eventually(gone, timeout_s=_SETTLES_IN_S)
            assert witness.broken == [], witness.broken
            assert any(len(uids) == 1 for uids in witness.attempts.values())
            assert "reconcile_faulted" not in operator.log
            await _ended(tasks.pop())
            # In a thread, because the proxy that it says goodbye through lives in this loop.
            assert await asyncio.to_thread(operator.stop) == 0, operator.log[-1500:]
        finally:
            for task in tasks:
                await _ended(task)
            operator.kill()


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancelled until it is: one cancellation can be lost to a call that ends at the same moment."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)


def _is_up(operator: OperatorProcess, before: int) -> bool:
    """Ready once more than before. One that gave up, such as for its lease, is started again, as a Deployment does."""
    if operator.ended() is not None:
        operator.start("--namespace", _NAMESPACE)
    return operator.log.count("operator_ready") > before


async def _keep_running(operator: OperatorProcess) -> None:
    while True:
        await asyncio.sleep(0.5)
        if operator.ended() is not None:
            operator.start("--namespace", _NAMESPACE)
