"""How large the storms are, in the two sizes that tests have: small for every change, full for `--all`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DataflowStorm:
    seconds: float
    service_kills: int
    kills: int
    """At least, of workers and of ranks each, and as many departures."""
    steps: int
    """At least, of each policy."""
    everything: bool
    """Whether it is so long that all that may happen to a group, a worker or a rank has happened."""

    def required(self, *ends: str) -> dict[str, int]:
        """How often, at least, each of these has to happen, beside the kills of the service."""
        return {"service killed": self.service_kills, **dict.fromkeys(ends, self.kills)}


@dataclass(frozen=True, kw_only=True)
class Drains:
    tasks: int
    scale_downs: int
    kills: int
    slow_every: int
    """One task in so many takes longer than a draining worker waits for what it has: many of those are handed back."""


@dataclass(frozen=True, kw_only=True)
class AgentStorm:
    seconds: float
    swap_every_s: float
    kill_every_s: float
    agents: int


@dataclass(frozen=True, kw_only=True)
class Sizes:
    dataflow_storm: DataflowStorm
    stage_storm: DataflowStorm
    """With stage workers, which are killed as often as the others."""
    drains: Drains
    agent_storm: AgentStorm
    """Of agents that ask through the gateway, while weights are swapped and the engine is killed."""
    quickstart_steps: int
    quickstart_reward: float
    """That it comes to in its last steps, at least."""
    quickstart_gain: float
    """On held-out prompts, at least."""
    interrupted_jobs: bool
    """Whether the whole job that learns is stopped by Ctrl-C on its way, and resumed."""
    quickstart_replicas: int
    """At most, of its pool, which begins with one."""
    examples: int
    """Of each property that does not say how many it needs."""
    hostile_objects: int
    """Random ones, through decoders and reconcilers in this process; `make fuzz` takes five times as many."""
    hostile_writes: int
    """Of random objects, to a real API server."""
    lost_tails: int
    """Of a ledger, while a trainer trains."""
    power_losses: int
    """Of the disk of a whole job."""
    bus_power_losses: int
    """Of that of its bus alone."""
    rank_kills: int
    operator_kills: int
    weight_transfer_kills: int
    flipped_bits: int
    """Of chunks and manifests."""
    host_copy_rounds: int
    lines_between_kills: int
    """Of the code that commits, recovers and builds a host copy."""


SMALL = Sizes(
    dataflow_storm=DataflowStorm(seconds=15.0, service_kills=4, kills=1, steps=3, everything=False),
    stage_storm=DataflowStorm(seconds=12.0, service_kills=3, kills=1, steps=2, everything=False),
    drains=Drains(tasks=50, scale_downs=3, kills=1, slow_every=8),
    agent_storm=AgentStorm(seconds=6.0, swap_every_s=1.0, kill_every_s=3.0, agents=4),
    quickstart_steps=16,
    quickstart_reward=0.25,
    quickstart_gain=0.02,
    interrupted_jobs=False,
    quickstart_replicas=2,
    examples=25,
    hostile_objects=1000,
    hostile_writes=40,
    lost_tails=3,
    power_losses=2,
    bus_power_losses=2,
    rank_kills=2,
    operator_kills=3,
    weight_transfer_kills=6,
    flipped_bits=60,
    host_copy_rounds=15,
    lines_between_kills=14,
)
FULL = Sizes(
    dataflow_storm=DataflowStorm(seconds=120.0, service_kills=20, kills=3, steps=10, everything=True),
    stage_storm=DataflowStorm(seconds=300.0, service_kills=40, kills=10, steps=20, everything=True),
    drains=Drains(tasks=1000, scale_downs=20, kills=4, slow_every=50),
    agent_storm=AgentStorm(seconds=60.0, swap_every_s=1.0, kill_every_s=10.0, agents=8),
    quickstart_steps=28,
    quickstart_reward=0.4,
    quickstart_gain=0.2,
    interrupted_jobs=True,
    quickstart_replicas=3,
    examples=300,
    hostile_objects=20_000,
    hostile_writes=500,
    lost_tails=50,
    power_losses=50,
    bus_power_losses=5,
    rank_kills=30,
    operator_kills=50,
    weight_transfer_kills=200,
    flipped_bits=1000,
    host_copy_rounds=150,
    lines_between_kills=1,
)
