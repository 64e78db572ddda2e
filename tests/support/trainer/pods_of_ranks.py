"""The pods of a trainer as the plan describes them, on this machine: started by their own command, or their ranks
forked from a template with what torchrun would tell them, which takes a tenth of the time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import trimtab.trainer.__main__ as trainer
from tests.support.polling import eventually
from tests.support.template_process import TemplateProcess
from tests.support.trainer.rank_job import write_rank_job
from tests.support.trainer.samples import policy
from tests.support.weights.weight_site import SIGNER
from trimtab.embedded.ports import free_ports
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.pod import read_job
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings, Settings, environment_for, write_secrets
from trimtab.operator.plan.children import trainer_of
from trimtab.operator.plan.job_pods import trainer_pods
from trimtab.operator.plan.pods import PodPlan

_RUN_S = 300.0
_POD = "TRIMTAB_POD__"


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """Ranks to pods."""

    pods: int
    ranks_in_each: int

    @property
    def ranks(self) -> int:
        return self.pods * self.ranks_in_each

    @property
    def name(self) -> str:
        return f"{self.pods}x{self.ranks_in_each}"


class PodsOfRanks:
    """Of one job, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        nats: NatsSettings,
        objects: ObjectStoreSettings,
        topology: JobTopology,
        dealt: Dealt,
    ) -> None:
        folder.mkdir()
        (folder / "model").symlink_to(model)
        _write_job(folder / "job.yaml", topology, dealt)
        self._folder = folder
        self._nats = nats
        self._objects = objects
        self._dealt = dealt
        self._address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
        job = read_job(folder / "job.yaml")
        self._plans = trainer_pods(job, trainer_of(job, job.spec.policies[0]), attempt=0)

    async def launched(self) -> None:
        """Until all have ended well."""
        processes = [self._launch(plan) for plan in self._plans]
        try:
            await self._ended_well([process.poll for process in processes])
        finally:
            for process in processes:
                process.kill()
                process.wait()

    async def forked(self, template: TemplateProcess) -> None:
        # All before any rank begins: those of a pod read the same files of secrets.
        environments = [self._environment(plan) for plan in self._plans]
        pids = [
            template.start(_as_rank, environments[number] | self._place(number, local), self._log(plan))
            for number, plan in enumerate(self._plans)
            for local in range(self._dealt.ranks_in_each)
        ]
        await self._ended_well([_ending(template, pid) for pid in pids])

    async def _ended_well(self, ends: list[Callable[[], int | None]]) -> None:
        codes: dict[int, int] = {}

        def all_ended() -> bool:
            for number, end in enumerate(ends):
                if number not in codes and (code := end()) is not None:
                    codes[number] = code
            return len(codes) == len(ends) or any(codes.values())

        await eventually(all_ended, timeout_s=_RUN_S)
        assert not any(codes.values()), self._logs()

    def _launch(self, plan: PodPlan) -> subprocess.Popen[bytes]:
        (container,) = plan.containers
        command = [sys.executable, *(_filled(word, self._address) for word in container.command[1:])]
        with self._log(plan).open("wb") as log:
            return subprocess.Popen(command, env=os.environ | self._environment(plan), stdout=log, stderr=log)

    def _place(self, pod: int, local: int) -> dict[str, str]:
        rank = pod * self._dealt.ranks_in_each + local
        return self._address | {"RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(self._dealt.ranks)}

    def _environment(self, plan: PodPlan) -> dict[str, str]:
        """The same for all ranks of a pod, as in a cluster."""
        (container,) = plan.containers
        places = {"JOB_FILE": str(self._folder / "job.yaml"), "SCRATCH": str(self._folder / plan.name)}
        own = {name: _filled(value, places) for name, value in container.environment.items()}
        identity = {name[len(_POD) :].lower(): value for name, value in own.items() if name.startswith(_POD)}
        settings = Settings.model_validate(
            {
                "pod": identity,
                "nats": self._nats,
                "object_store": self._objects,
                "weights": {"signing_seed": SIGNER.reveal_seed()},
                "probes": {"host": "127.0.0.1", "port": free_ports(1)[0]},
            }
        )
        secrets = self._folder / f"{plan.name}-secrets"
        write_secrets(settings, secrets)
        return environment_for(settings, secrets_dir=secrets) | own

    def _log(self, plan: PodPlan) -> Path:
        return self._folder / f"{plan.name}.log"

    def _logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self._folder.glob("*.log")))


def _write_job(path: Path, topology: JobTopology, dealt: Dealt) -> None:
    trained = policy(
        replicas=dealt.pods, devicesPerReplica=dealt.ranks_in_each, dtype="bfloat16", checkpoint={"everySteps": 1}
    )
    # No version is passed over.
    write_rank_job(path, topology, trained, group_size=4, max_staleness=0)


def _ending(template: TemplateProcess, pid: int) -> Callable[[], int | None]:
    def ended() -> int | None:
        ending = template.ended(pid)
        return None if ending is None else os.waitstatus_to_exitcode(ending)

    return ended


def _as_rank(environment: Mapping[str, str], log: Path) -> None:
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(opened, stream.fileno())
    os.environ.update(environment)
    trainer.main()


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], text)
