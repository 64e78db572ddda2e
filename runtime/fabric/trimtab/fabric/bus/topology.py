"""The streams, consumers and buckets of one job, as data. Nothing here talks to a server; streams.py declares it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from trimtab.fabric.bus.names import SEPARATOR, escape_token
from trimtab.fabric.bus.stream_limits import ANYWHERE, Placement, StreamLimits

_NANOSECONDS = 1_000_000_000
_QUARANTINE_BYTES = 2 << 20
_HAND_BACKS_BYTES = 1 << 20
_SWAP_TURN_S = 10.0
_TASKS_IN_FLIGHT = 100_000
TASK_CONSUMER = "rollout"
STAGE_ROOT = "stages"
"""The token of a job's subjects under which its stages' tasks are."""


class Retention(StrEnum):
    LIMITS = "limits"
    WORK_QUEUE = "workqueue"


class Storage(StrEnum):
    FILE = "file"
    MEMORY = "memory"


class Discard(StrEnum):
    """What a full stream does: refuse the new message, or drop the oldest."""

    NEW = "new"
    OLD = "old"


class DeliverFrom(StrEnum):
    ALL = "all"
    NEW = "new"


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    name: str
    subjects: tuple[str, ...]
    retention: Retention = Retention.LIMITS
    storage: Storage = Storage.FILE
    discard: Discard = Discard.NEW
    duplicate_window_s: float = 120.0
    max_bytes: int = -1
    max_messages: int = -1
    max_age_s: float = 0.0
    allow_direct: bool = False
    replicas: int = 1
    placement: Placement = ANYWHERE

    def config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "subjects": list(self.subjects),
            "retention": self.retention.value,
            "storage": self.storage.value,
            "discard": self.discard.value,
            "duplicate_window": round(self.duplicate_window_s * _NANOSECONDS),
            "max_bytes": self.max_bytes,
            "max_msgs": self.max_messages,
            "max_age": round(self.max_age_s * _NANOSECONDS),
            "allow_direct": self.allow_direct,
            "num_replicas": self.replicas,
            "placement": self.placement.config(),
        }


@dataclass(frozen=True, kw_only=True)
class BucketSpec:
    """A key-value bucket, stored the way every NATS client stores one. With a TTL, keys expire without a word: markers
    would tell watchers, but a server that leaves them also lets any writer of a key wipe out all the others.
    """

    name: str
    ttl_s: float = 0.0
    history: int = 1
    storage: Storage = Storage.FILE
    max_bytes: int = -1
    discard: Discard = Discard.NEW
    replicas: int = 1
    placement: Placement = ANYWHERE

    @property
    def stream(self) -> str:
        return f"KV_{self.name}"

    def config(self) -> dict[str, Any]:
        window_s = min(120.0, self.ttl_s) if self.ttl_s else 120.0
        return {
            "name": self.stream,
            "subjects": [f"$KV.{self.name}.>"],
            "retention": Retention.LIMITS.value,
            "storage": self.storage.value,
            "discard": self.discard.value,
            "max_bytes": self.max_bytes,
            "duplicate_window": round(window_s * _NANOSECONDS),
            "max_msgs_per_subject": self.history,
            "max_age": round(self.ttl_s * _NANOSECONDS),
            "allow_direct": True,
            # A message with a header of that name would replace all others of the bucket, whoever wrote them.
            "allow_rollup_hdrs": False,
            "deny_delete": True,
            "deny_purge": True,
            "num_replicas": self.replicas,
            "placement": self.placement.config(),
        }


@dataclass(frozen=True, kw_only=True)
class ConsumerSpec:
    """A durable pull consumer with explicit acknowledgement."""

    name: str
    stream: str
    filter_subjects: tuple[str, ...] = ()
    ack_wait_s: float = 30.0
    max_deliver: int = -1
    max_ack_pending: int = 1000
    headers_only: bool = False
    deliver_from: DeliverFrom = DeliverFrom.ALL

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "name": self.name,
            "durable_name": self.name,
            "deliver_policy": self.deliver_from.value,
            "ack_policy": "explicit",
            "ack_wait": round(self.ack_wait_s * _NANOSECONDS),
            "max_deliver": self.max_deliver,
            "max_ack_pending": self.max_ack_pending,
            "headers_only": self.headers_only,
        }
        if len(self.filter_subjects) == 1:
            config["filter_subject"] = self.filter_subjects[0]
        elif self.filter_subjects:
            config["filter_subjects"] = list(self.filter_subjects)
        return config


@dataclass(frozen=True)
class JobTopology:
    """Everything one job has on the bus, named after its namespace and name."""

    namespace: str
    job: str
    replicas: int = 1
    tasks_max_bytes: int = -1
    trajectories_max_bytes: int = -1
    max_messages: int = -1
    placement: Placement = ANYWHERE
    member_ttl_s: float = 15.0
    stages: tuple[str, ...] = ()
    """Names of its stages. Their streams exist only in jobs that have some."""
    _root: str = field(init=False, repr=False)
    _stem: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tokens = (escape_token(self.namespace), escape_token(self.job))
        object.__setattr__(self, "_root", ".".join(("trimtab", *tokens)))
        object.__setattr__(self, "_stem", SEPARATOR.join(tokens))

    def limited(self, limits: StreamLimits) -> JobTopology:
        """The same with these limits. Tasks get an eighth of the bytes, and those of stages too; columns are numbers
        about trajectories, and get half as much as those."""
        tasks = trajectories = -1
        if limits.max_bytes is not None:
            tasks = limits.max_bytes // 8
            rest = limits.max_bytes - (2 * tasks if self.stages else tasks)
            trajectories = rest * 2 // 3 if self.stages else rest
        return replace(
            self,
            replicas=limits.replicas,
            placement=limits.placement,
            tasks_max_bytes=tasks,
            trajectories_max_bytes=trajectories,
            max_messages=-1 if limits.max_messages is None else limits.max_messages,
        )

    @property
    def tasks(self) -> StreamSpec:
        return StreamSpec(
            name=f"{self._stem}{SEPARATOR}TASKS",
            subjects=(f"{self._root}.tasks.>",),
            retention=Retention.WORK_QUEUE,
            max_bytes=self.tasks_max_bytes,
            replicas=self.replicas,
            placement=self.placement,
        )

    @property
    def trajectories(self) -> StreamSpec:
        """Refuses new messages when full: dropping the oldest would lose what a worker was told is safe."""
        return StreamSpec(
            name=f"{self._stem}{SEPARATOR}TRAJECTORIES",
            subjects=(f"{self._root}.trajectories.>",),
            max_bytes=self.trajectories_max_bytes,
            max_messages=self.max_messages,
            allow_direct=True,
            replicas=self.replicas,
            placement=self.placement,
        )

    @property
    def stage_tasks(self) -> StreamSpec:
        """What stages are to compute: each stage takes its own by a consumer of its own."""
        return StreamSpec(
            name=f"{self._stem}{SEPARATOR}STAGES",
            subjects=(f"{self._root}.{STAGE_ROOT}.>",),
            retention=Retention.WORK_QUEUE,
            max_bytes=self.tasks_max_bytes,
            replicas=self.replicas,
            placement=self.placement,
        )

    @property
    def columns(self) -> StreamSpec:
        """What stages have computed. It refuses new messages when full, as the stream of trajectories does."""
        return StreamSpec(
            name=f"{self._stem}{SEPARATOR}COLUMNS",
            subjects=(f"{self._root}.columns.>",),
            max_bytes=self.trajectories_max_bytes // 2 if self.trajectories_max_bytes > 0 else -1,
            max_messages=self.max_messages,
            allow_direct=True,
            replicas=self.replicas,
            placement=self.placement,
        )

    @property
    def weights(self) -> BucketSpec:
        return BucketSpec(name=f"{self._stem}{SEPARATOR}weights", replicas=self.replicas, placement=self.placement)

    @property
    def members(self) -> BucketSpec:
        return BucketSpec(
            name=f"{self._stem}{SEPARATOR}members",
            ttl_s=self.member_ttl_s,
            replicas=self.replicas,
            placement=self.placement,
        )

    @property
    def balance(self) -> BucketSpec:
        """With the last steps of each policy, for who writes down all of them and was away for a while."""
        return BucketSpec(
            name=f"{self._stem}{SEPARATOR}balance", history=64, replicas=self.replicas, placement=self.placement
        )

    @property
    def quarantine(self) -> BucketSpec:
        """Tasks that were given up. For people: when there are too many, the oldest give way."""
        return BucketSpec(
            name=f"{self._stem}{SEPARATOR}quarantine",
            max_bytes=_QUARANTINE_BYTES,
            discard=Discard.OLD,
            replicas=self.replicas,
            placement=self.placement,
        )

    @property
    def hand_backs(self) -> BucketSpec:
        """How often each task was handed back. Those of long ago, whose tasks are settled, give way."""
        return BucketSpec(
            name=f"{self._stem}{SEPARATOR}handbacks",
            max_bytes=_HAND_BACKS_BYTES,
            discard=Discard.OLD,
            replicas=self.replicas,
            placement=self.placement,
        )

    @property
    def swaps(self) -> BucketSpec:
        """Which workers of a pool swap their weights now. One that dies meanwhile is forgotten soon."""
        return BucketSpec(
            name=f"{self._stem}{SEPARATOR}swaps",
            ttl_s=_SWAP_TURN_S,
            storage=Storage.MEMORY,
            replicas=self.replicas,
            placement=self.placement,
        )

    @property
    def ledger(self) -> StreamSpec:
        """The dataflow's own record of its decisions."""
        return StreamSpec(
            name=f"{self._stem}{SEPARATOR}LEDGER",
            subjects=(self.ledger_subject,),
            replicas=self.replicas,
            placement=self.placement,
        )

    @property
    def ledger_subject(self) -> str:
        return f"{self._root}.ledger"

    @property
    def streams(self) -> tuple[StreamSpec, ...]:
        always = (self.tasks, self.trajectories, self.ledger)
        return (*always, self.stage_tasks, self.columns) if self.stages else always

    @property
    def buckets(self) -> tuple[BucketSpec, ...]:
        return (self.weights, self.members, self.balance, self.quarantine, self.hand_backs, self.swaps)

    def task_consumer(self, *, lease_s: float) -> ConsumerSpec:
        """By which all rollout pods take tasks. It does not limit deliveries: a task that the server stops delivering
        is lost without a word, where one that is given up by a worker is published as a failure."""
        return ConsumerSpec(
            name=TASK_CONSUMER, stream=self.tasks.name, ack_wait_s=lease_s, max_ack_pending=_TASKS_IN_FLIGHT
        )

    def stage_consumer(self, stage: str, *, lease_s: float) -> ConsumerSpec:
        """By which all pods that run a stage take its tasks."""
        return ConsumerSpec(
            name=self.stage_consumer_name(stage),
            stream=self.stage_tasks.name,
            filter_subjects=(self.stage_subject(stage),),
            ack_wait_s=lease_s,
            max_ack_pending=_TASKS_IN_FLIGHT,
        )

    @staticmethod
    def stage_consumer_name(stage: str) -> str:
        return f"stage-{escape_token(stage)}"

    def stage_subject(self, stage: str) -> str:
        return f"{self._root}.{STAGE_ROOT}.{escape_token(stage)}"

    def column_subject(self, stage: str) -> str:
        return f"{self._root}.columns.{escape_token(stage)}"

    def task_subject(self, queue: str) -> str:
        return f"{self._root}.tasks.{escape_token(queue)}"

    def trajectory_subject(self, policy: str) -> str:
        return f"{self._root}.trajectories.{escape_token(policy)}"

    @staticmethod
    def progress_key(policy: str) -> str:
        """Where the balance bucket holds a policy's latest step."""
        return f"{escape_token(policy)}.progress"

    @staticmethod
    def report_key(policy: str) -> str:
        """Where the balance bucket holds a policy's latest balance report."""
        return f"{escape_token(policy)}.report"

    @staticmethod
    def quarantine_key(task_id: str) -> str:
        """Where the quarantine bucket holds a task."""
        return escape_token(task_id)

    @staticmethod
    def swap_slot_key(pool: str, policy: str, *, slot: int) -> str:
        """Where the bucket of swaps holds one of a pool's turns for a policy."""
        return f"{escape_token(pool)}.{escape_token(policy)}.{slot}"

    @staticmethod
    def evaluation_key(policy: str, benchmark: str, *, version: int) -> str:
        """Where the balance bucket holds the result of a version of a policy on a benchmark."""
        return f"{escape_token(policy)}.evaluation.{escape_token(benchmark)}.{version}"

    @property
    def all_batches(self) -> str:
        """Where batches of any policy are asked for."""
        return f"{self._root}.batches.>"

    def batch_subject(self, policy: str, *, shard: int = 0) -> str:
        return f"{self._root}.batches.{escape_token(policy)}.{shard}"
