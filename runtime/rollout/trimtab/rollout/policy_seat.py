"""One policy in a rollout pod: its engine, what samples from it, and what keeps its weights fresh."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from trimtab.api.policy import Policy
from trimtab.api.pool import JobPool
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.signing import Verifier
from trimtab.fabric.wire.sampling import sampling_fields
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import SamplingSettings
from trimtab.rollout.freshness import VersionLine
from trimtab.rollout.pace import Announcements
from trimtab.rollout.pool_census import PoolCensus
from trimtab.rollout.sampler import PolicySampler
from trimtab.rollout.sparse_file import SparseFile
from trimtab.rollout.swap_metrics import SwapMetrics
from trimtab.rollout.swap_turns import SwapTurns
from trimtab.rollout.version_gate import VersionGate
from trimtab.rollout.weight_refresh import Seating, WeightRefresh
from trimtab.rollout.workflows.team import Role, Tokenizer
from trimtab.weights.puller import WeightPuller

_TURN_FIRST_S = 0.02
_TURN_MAX_S = 0.5


@dataclass(frozen=True, kw_only=True)
class SeatPlace:
    """What the policies of a pod share."""

    member: str
    pool: JobPool
    scratch: Path
    store: ObjectStore
    trusted: Verifier
    pointers: KeyValue
    swaps: KeyValue
    census: PoolCensus
    metrics: SwapMetrics


class PolicySeat:
    """Its puller is to be opened before its refresh runs, and closed after."""

    def __init__(self, policy: Policy, engine: EngineClient, place: SeatPlace, *, model: Path) -> None:
        scratch = place.scratch / policy.name
        self.policy = policy
        self.engine = engine
        self.gate = VersionGate()
        self.announcements = Announcements(clock=time.monotonic)
        self.sampler = PolicySampler(engine, self.gate)
        self.puller = WeightPuller(
            place.store,
            policy.name,
            place.trusted,
            folder=scratch / "copy",
            spool=scratch / "spool",
            member=place.member,
        )
        self.refresh = WeightRefresh(
            Seating(
                policy=policy.name,
                base_model=model,
                engine=engine,
                gate=self.gate,
                sampler=self.sampler,
                announcements=self.announcements,
                puller=self.puller,
                sparse=SparseFile(scratch / "sparse.safetensors") if place.pool.engine.name == "builtin" else None,
            ),
            place.pointers,
            SwapTurns(
                place.swaps,
                place.census,
                pool=place.pool.name,
                policy=policy.name,
                member=place.member,
                clock=time.monotonic,
                waits=FullJitter(_TURN_FIRST_S, _TURN_MAX_S),
            ),
            place.metrics,
            engine_start_timeout_s=place.pool.engine.startup_timeout_seconds,
            clock=time.monotonic,
        )
        self.tokenizer = Tokenizer.of(AutoTokenizer.from_pretrained(model, local_files_only=True))

    def role(self, name: str) -> Role:
        return Role(
            name=name,
            policy=self.policy.name,
            tokenizer=self.tokenizer,
            sampler=self.sampler,
            sampling=SamplingSettings(**sampling_fields(self.policy.sampling)),
        )

    @property
    def line(self) -> VersionLine:
        return VersionLine(gate=self.gate, announcements=self.announcements)
