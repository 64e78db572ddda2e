"""Everything that is tried, as data: each API call on each stream, each header on each subject, each answer that is
sent elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.fabric.scan.targets import BATCHES, STAGE, Target
from trimtab.fabric.bus.names import Headers
from trimtab.fabric.bus.topology import TASK_CONSUMER, JobTopology

_READER = "scan-reader"


@dataclass(frozen=True)
class Attempt:
    means: str
    """What it would be if it worked, as `target: what`."""
    subject: str
    payload: bytes = b""
    headers: Headers = field(default_factory=dict)
    stores: bool = False
    """Whether an answer with an error in it means that it did not work."""
    of_its_own: bool = False
    """Whether the server answers every account, of that account alone."""


_STAGE_CONSUMER = JobTopology.stage_consumer_name(STAGE)
# By what they would mean; {0} is the stream, {1} a subject of it.
_READS = ("DIRECT.GET.{0}", "DIRECT.GET.{0}.{1}", "STREAM.MSG.GET.{0}")
_FOLLOWS = (
    "CONSUMER.CREATE.{0}.scan-reader",
    "CONSUMER.MSG.NEXT.{0}.scan-reader",
    "CONSUMER.DELETE.{0}.scan-reader",
    f"CONSUMER.CREATE.{{0}}.{TASK_CONSUMER}",
    f"CONSUMER.DELETE.{{0}}.{_STAGE_CONSUMER}",
)
_TAKES, _COUNTS = (
    tuple(f"CONSUMER.{operation}.{{0}}.{consumer}" for consumer in (TASK_CONSUMER, _STAGE_CONSUMER))
    for operation in ("MSG.NEXT", "INFO")
)
_OTHERS = (
    "STREAM.CREATE.{0}",
    "STREAM.UPDATE.{0}",
    "STREAM.SNAPSHOT.{0}",
    "STREAM.RESTORE.{0}",
    "STREAM.LEADER.STEPDOWN.{0}",
    "STREAM.PEER.REMOVE.{0}",
    "STREAM.CANCEL_MOVE.{0}",
    "STREAM.MOVE.{0}",
    "CONSUMER.CREATE.{0}",
    "CONSUMER.CREATE.{0}.scan-filtered.{1}",
    "CONSUMER.DURABLE.CREATE.{0}.scan-durable",
    "CONSUMER.INFO.{0}.scan-reader",
    "CONSUMER.LIST.{0}",
    "CONSUMER.NAMES.{0}",
    f"CONSUMER.CREATE.{{0}}.{_STAGE_CONSUMER}.{{1}}",
    "CONSUMER.PAUSE.{0}.rollout",
    "CONSUMER.UNPIN.{0}.rollout",
    "CONSUMER.RESET.{0}.rollout",
    "CONSUMER.LEADER.STEPDOWN.{0}.rollout",
    "STREAM.DELETE.{0}",
)
_CONNECTIONS = "$SYS.REQ.SERVER.PING.CONNZ"
_OF_THE_ACCOUNT = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.CREATE.scan-made",
    "$JS.API.STREAM.TEMPLATE.NAMES",
    "$JS.API.META.LEADER.STEPDOWN",
    "$JS.API.SERVER.REMOVE",
    "$JS.API.ACCOUNT.PURGE.{account}",
    "$JS.API.ACCOUNT.STREAM.MOVE.{account}.{stream}",
    "$SYS.REQ.CLAIMS.UPDATE",
    "$SYS.REQ.CLAIMS.LIST",
    "$SYS.REQ.CLAIMS.DELETE",
    "$SYS.REQ.CLAIMS.PACK",
    "$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP",
    "$SYS.REQ.ACCOUNT.{account}.CONNZ",
    "$SYS.REQ.ACCOUNT.{account}.SUBSZ",
    "$SYS.REQ.ACCOUNT.{account}.JSZ",
    "$SYS.REQ.SERVER.PING",
    _CONNECTIONS,
    "$SYS.REQ.SERVER.PING.JSZ",
    "$SYS.REQ.SERVER.PING.KICK",
    "$SYS.DEBUG.SUBSCRIBERS",
)

_HEADERS: dict[str, Headers] = {
    "rollup of all": {"Nats-Rollup": "all"},
    "rollup of the subject": {"Nats-Rollup": "sub"},
    "TTL": {"Nats-TTL": "1s"},
    "TTL never": {"Nats-TTL": "never"},
    "counter": {"Nats-Incr": "1"},
    "batch": {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
}


def on_streams(targets: Iterable[Target], *, owner: str = "") -> list[Attempt]:
    """`owner` is put before what it would mean: of another job, all of it is too much."""
    found: list[Attempt] = []
    for target in targets:
        own = {
            "read": _READS,
            "follow": _FOLLOWS,
            "take": _TAKES,
            "count": _COUNTS,
            "withdraw": ("STREAM.MSG.DELETE.{0}",),
            "look up": ("STREAM.INFO.{0}",),
            "shorten": ("STREAM.PURGE.{0}",),
        }
        named = [(what, operation) for what, operations in own.items() for operation in operations]
        for what, operation in [*named, *((other.split(".{")[0], other) for other in _OTHERS)]:
            subject = f"$JS.API.{operation.format(target.stream, target.subject)}"
            found.append(Attempt(f"{owner}{target.name}: {what}", subject, _body(operation, target)))
        write = f"{owner}{target.name}: write"
        found.append(Attempt(write, target.subject, b"scan", {"Nats-Msg-Id": target.stream}, stores=True))
        found += [
            Attempt(f"{write} with {name}", target.subject, b"1", headers, stores=True)
            for name, headers in _HEADERS.items()
        ]
        scheduled = {"Nats-Schedule": "@at 2000-01-01T00:00:00Z", "Nats-Schedule-Target": "trimtab.scan.target"}
        found.append(Attempt(f"{write} with schedule", target.subject, b"scan", scheduled, stores=True))
    return found


def _body(operation: str, target: Target) -> bytes:
    consumer = {"stream_name": target.stream, "config": {"name": _READER, "ack_policy": "none", "mem_storage": True}}
    if operation == "DIRECT.GET.{0}.{1}" or operation.startswith(("STREAM.INFO", "CONSUMER.INFO", "STREAM.PURGE")):
        return b""
    if operation.startswith(("DIRECT.GET", "STREAM.MSG")):
        return b'{"seq": 1}'
    if operation.startswith("CONSUMER.MSG.NEXT"):
        return b'{"batch": 1, "no_wait": true}'
    if operation.startswith("CONSUMER."):
        return json.dumps(consumer).encode()
    return json.dumps({"name": target.stream, "subjects": ["stolen"], "deliver_subject": "stolen"}).encode()


def on_batches(topology: JobTopology, *, owner: str = "") -> list[Attempt]:
    return [Attempt(f"{owner}{BATCHES}: ask", topology.batch_subject("scan"), b"a question")]


def on_accounts(accounts: Iterable[str], *, stream: str) -> list[Attempt]:
    """`accounts` are public keys."""
    subjects = {subject.format(account=account, stream=stream) for account in accounts for subject in _OF_THE_ACCOUNT}
    return [
        Attempt(f"server: {subject}", subject, b"{}", of_its_own=subject == _CONNECTIONS)
        for subject in sorted(subjects)
    ]


def question(right: str) -> tuple[str, bytes]:
    """One that the right allows, and what to say in it."""
    pull = right.startswith("$JS.API.CONSUMER.MSG.NEXT.")
    return right.replace(">", "scan").replace("*", "scan"), b'{"no_wait": true}' if pull else b'{"seq": 1}'


def answers_elsewhere(own: Iterable[Target], other: Iterable[Target], *, inboxes: Iterable[str]) -> list[str]:
    """Subjects to which an answer must not get: of both jobs' books and of JetStream, and where others hear answers."""
    found: list[str] = [f"{inbox}.scan" for inbox in inboxes]
    for target in (*own, *other):
        found += [
            target.subject,
            f"$JS.API.STREAM.DELETE.{target.stream}",
            f"$JS.API.STREAM.PURGE.{target.stream}",
            f"$JS.API.STREAM.INFO.{target.stream}",
            f"$JS.API.STREAM.MSG.GET.{target.stream}",
            f"$JS.API.CONSUMER.CREATE.{target.stream}",
            f"$JS.ACK.{target.stream}.{TASK_CONSUMER}.1.1.1.1.1",
            f"$JS.ACK.{target.stream}.{_STAGE_CONSUMER}.1.1.1.1.1",
        ]
    return [*found, "$JS.API.STREAM.CREATE.scan-made", "$SYS.REQ.CLAIMS.UPDATE", "trimtab.scan.target"]
