"""Operators for one namespace, one after the other or several at once, with the shipped Role and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.operator.forked_operator import ForkedOperator
from tests.support.operator.operator_process import OperatorProcess, grant_namespaced_role
from tests.support.template_process import TemplateProcess
from trimtab.embedded.kube.control_plane import ControlPlane


@contextmanager
def namespaced_operators(
    template: TemplateProcess, plane: ControlPlane, *, namespace: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[Callable[..., OperatorProcess]]:
    """Starts one, given its identity and what is special in its environment."""
    user = grant_namespaced_role(plane, namespace)
    started: list[OperatorProcess] = []

    def start(identity: str, **special: str) -> OperatorProcess:
        process = ForkedOperator(
            template,
            folder / f"{identity}-{len(started)}",
            plane=plane,
            # A machine that is busy for a while must not cost it the lease.
            environment={
                **environment,
                "TRIMTAB_IDENTITY": identity,
                "TRIMTAB_LEASE__DURATION_S": "120",
                **special,
            },
            user=user,
            home=namespace,
        ).start("--namespace", namespace)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.ended() is None:
            process.kill()
