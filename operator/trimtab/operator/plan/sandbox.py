"""The sandbox of a rollout pod: a container that is given programs by the worker, and nothing else by anybody."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.api.conditions import ConditionType
from trimtab.api.scalars import Resources
from trimtab.api.workflow import WorkflowSandbox
from trimtab.operator.conditions import Statement
from trimtab.operator.plan.pods import ContainerPlan, ObservedPod
from trimtab.operator.untrusted import MAX_TEXT, printable

SOCKET = "$(SANDBOX)/programs"
_MIB = 1 << 20
_KIB = 1 << 10
_OWN_MIB = 256
"""For the sandbox itself, and the processes that stand guard."""


def sandbox_containers(sandbox: WorkflowSandbox | None) -> list[ContainerPlan]:
    if sandbox is None:
        return []
    limits = {
        "wall-s": sandbox.timeout_seconds,
        "cpu-s": sandbox.timeout_seconds,
        "memory-bytes": sandbox.memory_mib * _MIB,
        "processes": sandbox.processes,
        "disk-bytes": sandbox.disk_mib * _MIB,
        "output-bytes": sandbox.output_kib * _KIB,
        "concurrency": sandbox.concurrency,
    }
    most_mib = _OWN_MIB + sandbox.concurrency * (sandbox.memory_mib + sandbox.disk_mib)
    container = ContainerPlan(
        name="sandbox",
        command=(
            *("python", "-m", "trimtab.rollout.sandbox", f"--socket={SOCKET}"),
            *(f"--{name}={value}" for name, value in limits.items()),
        ),
        sidecar=True,
        sealed=True,
        image=sandbox.image,
        resources=Resources(requests={"memory": f"{_OWN_MIB}Mi"}, limits={"memory": f"{most_mib}Mi"}),
    )
    return [container]


def sandbox_environment(sandbox: WorkflowSandbox | None) -> dict[str, str]:
    """For the worker."""
    return {} if sandbox is None else {"TRIMTAB_SANDBOX": SOCKET}


def sandboxed(pods: Sequence[ObservedPod]) -> Statement:
    """What these pods say of their sandboxes. Nodes may differ: the one with the fewest layers is told."""
    said = [pod for pod in pods if pod.sandbox is not None]
    if not said:
        return Statement(type=ConditionType.SANDBOXED, holds=None, reason="NotToldYet")
    weakest = max(said, key=lambda pod: 0 if pod.sandbox is None else len(pod.sandbox.missing))
    assert weakest.sandbox is not None
    missing = weakest.sandbox.missing
    reasons = "; ".join(
        f"{printable(name, limit=40)}: {printable(why, limit=MAX_TEXT)}" for name, why in missing.items()
    )
    holding = ", ".join(printable(name, limit=40) for name in weakest.sandbox.holding)
    return Statement(
        type=ConditionType.SANDBOXED,
        holds=True,
        reason="LayersMissing" if missing else "AllLayersHold",
        message=f"programs in {weakest.name} are held by {holding}" + (f", without {reasons}" if missing else ""),
    )
