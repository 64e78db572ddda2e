"""The rights of each role of a job, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from trimtab.fabric.bus.permissions.dataflow import dataflow_rights
from trimtab.fabric.bus.permissions.rollout import rollout_rights
from trimtab.fabric.bus.permissions.trainer import trainer_rights
from trimtab.fabric.bus.rights import Rights
from trimtab.fabric.bus.topology import JobTopology


class _RightsOfRole(Protocol):
    def __call__(self, topology: JobTopology, *, inbox_prefix: str) -> Rights: ...


RIGHTS_OF: Mapping[str, _RightsOfRole] = {
    "dataflow": dataflow_rights,
    "rollout": rollout_rights,
    "trainer": trainer_rights,
}


def rights_of(role: str, topology: JobTopology, *, inbox_prefix: str) -> Rights:
    return RIGHTS_OF[role](topology, inbox_prefix=inbox_prefix)
