"""Rights of a NATS user as a value, and as its token has them.

A wildcard stands for a whole token of a subject, and a stream's name is one token: every right names its stream in
full, so that it holds for one job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trimtab.fabric.bus.topology import BucketSpec, JobTopology
from trimtab.fabric.settings import NatsSettings

_SHARED_INBOX = NatsSettings.model_fields["inbox_prefix"].default
# An answer may come this long after its question: above what the slowest responder takes.
_ANSWER_WITHIN_S = 300


@dataclass(frozen=True, kw_only=True)
class Rights:
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool = False
    """Whether it may answer a question that it was asked, wherever the answer goes: once, and not for long."""

    def claims(self) -> dict[str, Any]:
        """As a user's token has them."""
        found: dict[str, Any] = {"pub": {"allow": list(self.publish)}, "sub": {"allow": list(self.subscribe)}}
        if self.answers:
            found["resp"] = {"max": 1, "ttl": _ANSWER_WITHIN_S * 1_000_000_000}
        return found


def own_inbox(inbox_prefix: str) -> str:
    """The subscription for answers to this user alone."""
    if inbox_prefix == _SHARED_INBOX:
        raise ValueError(f"inbox_prefix: {_SHARED_INBOX} is where all answers arrive; give the user one of its own")
    return f"{inbox_prefix}.>"


def stream_lookups(topology: JobTopology) -> list[str]:
    """What every pod begins with: whether the job's streams and buckets are there, and as they should be."""
    names = [*(spec.name for spec in topology.streams), *(spec.stream for spec in topology.buckets)]
    return [f"$JS.API.STREAM.INFO.{name}" for name in names]


def key_reads(*buckets: BucketSpec) -> list[str]:
    return [f"$JS.API.DIRECT.GET.{bucket.stream}.$KV.{bucket.name}.>" for bucket in buckets]


def key_writes(*buckets: BucketSpec) -> list[str]:
    return [f"$KV.{bucket.name}.>" for bucket in buckets]


def direct_reads(*buckets: BucketSpec) -> list[str]:
    """Reading them message by message, without a consumer; see direct_reader.py."""
    return [f"$JS.API.DIRECT.GET.{bucket.stream}" for bucket in buckets]


def change_subscriptions(*buckets: BucketSpec) -> list[str]:
    """Subscriptions that tell a reader of the bucket that there is something new."""
    return [f"$KV.{bucket.name}.>" for bucket in buckets]


def stream_reads(*streams: str) -> list[str]:
    """The whole of each, by a throw-away consumer."""
    operations = ("CREATE", "MSG.NEXT", "DELETE")
    return [f"$JS.API.CONSUMER.{operation}.{stream}.*" for stream in streams for operation in operations]
