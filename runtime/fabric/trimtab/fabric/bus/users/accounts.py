"""The accounts of one job, as data: the job's own holds its streams, and each role has one from which it reaches
exactly what it needs of them.

NATS checks the subject of a request and not where the answer goes, and JetStream answers in its own name. Between
accounts it maps answers: one that is asked for from a role's account arrives in that account and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trimtab.fabric.bus.permissions import RIGHTS_OF, rights_of
from trimtab.fabric.bus.topology import JobTopology

JOB = "job"
"""The account with the streams; the others are named after their role."""
ROLE_ACCOUNTS = tuple(sorted(RIGHTS_OF))
_NO_RIGHTS_INBOX = "_INBOX_any"
_SECOND_NS = 1_000_000_000
# A question for messages or a batch is forgotten by the server after this time: above what a client waits for it.
_ANSWERS_WITHIN_S = 60
_UNANSWERED = "trimtab.unanswered"
_JETSTREAM_INFO = "$JS.API.INFO"


class Kind(StrEnum):
    SERVICE = "service"
    """Questions go one way and answers the other."""
    STREAM = "stream"
    """Messages are heard, and nothing goes back."""


class Answers(StrEnum):
    ONE = "Singleton"
    MANY = "Stream"


@dataclass(frozen=True, kw_only=True)
class Export:
    subject: str
    kind: Kind
    answers: Answers = Answers.ONE
    within_s: int | None = None
    """After which the server forgets a question; absent, as it likes."""

    def claim(self) -> dict[str, object]:
        """Private: an account has to be let in by name."""
        found: dict[str, object] = {
            "name": self.subject,
            "subject": self.subject,
            "type": self.kind.value,
            "token_req": True,
        }
        if self.kind is Kind.SERVICE:
            found["response_type"] = self.answers.value
        if self.within_s is not None:
            found["response_threshold"] = self.within_s * _SECOND_NS
        return found


@dataclass(frozen=True, kw_only=True)
class Import:
    subject: str
    account: str
    """The name of the account that exports it."""
    kind: Kind
    here: str | None = None
    """What it is called where it is imported; absent, the same."""


@dataclass(frozen=True, kw_only=True)
class AccountPlan:
    name: str
    holds_streams: bool = False
    exports: tuple[Export, ...] = ()
    imports: tuple[Import, ...] = ()


def job_account_plans(topology: JobTopology) -> Mapping[str, AccountPlan]:
    """By name. What a role may publish is what its account imports; a user's own rights say the same once more."""
    roles = {role: _role_plan(role, topology) for role in ROLE_ACCOUNTS}
    reached = {(one.subject, one.kind) for plan in roles.values() for one in plan.imports if one.account == JOB}
    batched = {f"$JS.API.DIRECT.GET.{name}" for name in _stream_names(topology)}
    exports = tuple(
        Export(subject=subject, kind=kind)
        if kind is Kind.STREAM or not (subject in batched or subject.startswith("$JS.API.CONSUMER.MSG.NEXT."))
        else Export(subject=subject, kind=kind, answers=Answers.MANY, within_s=_ANSWERS_WITHIN_S)
        for subject, kind in sorted(reached)
    )
    return {JOB: AccountPlan(name=JOB, holds_streams=True, exports=exports), **roles}


def _role_plan(role: str, topology: JobTopology) -> AccountPlan:
    rights = rights_of(role, topology, inbox_prefix=_NO_RIGHTS_INBOX)
    changes = {f"$KV.{bucket.name}.>" for bucket in topology.buckets}
    imports = [
        Import(
            subject=subject,
            account="dataflow" if subject == topology.all_batches else JOB,
            kind=Kind.SERVICE,
        )
        for subject in rights.publish
    ]
    imports += [
        Import(subject=subject, account=JOB, kind=Kind.STREAM) for subject in rights.subscribe if subject in changes
    ]
    # An account without streams that does not import this one is answered by the server itself, in competition with
    # the job's account, that it has no JetStream.
    imports.append(Import(subject=_UNANSWERED, account=JOB, kind=Kind.SERVICE, here=_JETSTREAM_INFO))
    served = topology.all_batches in rights.subscribe
    exports = (Export(subject=topology.all_batches, kind=Kind.SERVICE, within_s=_ANSWERS_WITHIN_S),) if served else ()
    return AccountPlan(name=role, exports=exports, imports=tuple(imports))


def _stream_names(topology: JobTopology) -> list[str]:
    return [*(spec.name for spec in topology.streams), *(spec.stream for spec in topology.buckets)]
