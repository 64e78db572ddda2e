"""The three CustomResourceDefinitions, built from the types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trimtab.api.job import RLJob
from trimtab.api.model import GROUP, VERSION
from trimtab.api.pool import RolloutPool
from trimtab.api.schema import Schema, structural_schema
from trimtab.api.trainer import Trainer

Resource = RLJob | RolloutPool | Trainer


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; priority 1 shows it with `-o wide` only."""

    name: str
    path: str
    type: str
    description: str
    priority: int = 0

    def wire(self) -> dict[str, Any]:
        """The column as an entry of additionalPrinterColumns."""
        entry: dict[str, Any] = {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.description,
        }
        return entry | ({"priority": self.priority} if self.priority else {})


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of the API."""

    model: type[RLJob] | type[RolloutPool] | type[Trainer]
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    scalable: bool = False

    @property
    def name(self) -> str:
        """The kind as manifests write it."""
        return self.model.__name__


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_AGE = Column("Age", ".metadata.creationTimestamp", "date", "Time since creation.")
_JOB = Column("Job", ".spec.jobRef.name", "string", "The RLJob it works for.")
_STEP = Column("Step", ".status.step", "integer", "Trainer steps done.")
_REWARD = Column("Reward", ".status.reward", "number", "Mean reward of the last window: is it learning?")
_WAITING = Column(
    "Waiting", ".status.waitingFraction", "number", "Share of time the trainer waits: is the fleet too small?"
)
_STALENESS = Column("Staleness", ".status.staleness", "number", "Mean staleness of trained samples, in versions.", 1)
_WANTED = Column("Desired", ".spec.replicas", "integer", "Pods wanted.")
_READY_PODS = Column("Ready", ".status.readyReplicas", "integer", "Pods at work.")
_STATE = Column("State", _condition("Ready", "reason"), "string", "What it is doing.")
_ERROR = Column("Last-Error", ".status.lastError.reason", "string", "The latest failure.", 1)

KINDS = (
    Kind(
        RLJob,
        plural="rljobs",
        short_name="rlj",
        columns=(
            Column("State", _condition("Succeeded", "reason"), "string", "What the job is doing, or how it ended."),
            _STEP,
            _REWARD,
            _WAITING,
            Column("Rollout", ".status.replicas", "integer", "Rollout pods that exist: how big is it?"),
            Column("Ready", ".status.readyReplicas", "integer", "Rollout pods that take tasks."),
            _STALENESS,
            Column("Scaling", ".spec.autoscaling.mode", "string", "Autoscaling mode.", 1),
            Column("Wanted", ".status.autoscaling.bounded", "integer", "Rollout pods the autoscaler wants.", 1),
            Column("Quarantined", ".status.quarantinedTasks", "integer", "Tasks given up.", 1),
            _ERROR,
            _AGE,
        ),
    ),
    Kind(
        RolloutPool,
        plural="rolloutpools",
        short_name="rp",
        scalable=True,
        columns=(
            _JOB,
            _WANTED,
            _READY_PODS,
            Column("Draining", ".status.drainingReplicas", "integer", "Pods that finish before they go."),
            _STATE,
            Column("Engine", ".spec.engine.name", "string", "Inference engine.", 1),
            Column("Version", ".status.version", "integer", "Oldest weight version served.", 1),
            Column("Tokens/s", ".status.tokensPerSecond", "number", "Generated tokens per second.", 1),
            Column(
                "Cluster", ".spec.cluster.kubeconfigSecret.name", "string", "Kubeconfig Secret of another cluster.", 1
            ),
            _ERROR,
            _AGE,
        ),
    ),
    Kind(
        Trainer,
        plural="trainers",
        short_name="tr",
        columns=(
            _JOB,
            Column("Policy", ".spec.policy", "string", "The policy it trains."),
            _STEP,
            _REWARD,
            _WAITING,
            Column("Version", ".status.version", "integer", "Latest published weight version."),
            Column("Ranks", ".status.readyReplicas", "integer", "Ranks that train."),
            _STATE,
            _STALENESS,
            Column("Restarts", ".status.restarts", "integer", "Restarts for any reason.", 1),
            _ERROR,
            _AGE,
        ),
    ),
)


def custom_resource_definitions() -> list[dict[str, Any]]:
    """The CRDs of the group, ready to apply."""
    return [_definition(kind) for kind in KINDS]


def served_schema(kind: Kind) -> Schema:
    """The schema as the CRD carries it: metadata is the server's own business, beyond the length rules need for their
    price."""
    schema = structural_schema(kind.model)
    for field in ("apiVersion", "kind"):
        schema["properties"][field] = {"type": "string", "description": schema["properties"][field]["description"]}
    schema["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}}
    schema["required"] = ["spec"]
    return schema


def _definition(kind: Kind) -> dict[str, Any]:
    singular = kind.name.lower()
    subresources: dict[str, Any] = {"status": {}}
    if kind.scalable:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": singular,
                "shortNames": [kind.short_name],
                "categories": ["rl"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": served_schema(kind)},
                    "subresources": subresources,
                    "additionalPrinterColumns": [column.wire() for column in kind.columns],
                }
            ],
        },
    }
