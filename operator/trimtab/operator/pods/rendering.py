"""A planned pod as Kubernetes has it. Three layers: what we would choose, the manifest's template over it, and over
both what makes the pod ours: names, labels, owner, commands, wiring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.api import labels
from trimtab.fabric.settings import ProbeSettings
from trimtab.kube.resources import Object
from trimtab.operator.plan.pods import ContainerPlan, PodPlan
from trimtab.operator.pods.credentials import SECRETS_FOLDER
from trimtab.operator.pods.gang import (
    GANG_GATE,
    PORT_NAME,
    rendezvous_group,
    rendezvous_host,
    rendezvous_port,
)
from trimtab.operator.pods.manifest import JOB_FILE, JOB_FOLDER
from trimtab.operator.pods.template import completed, laid_out, merged
from trimtab.operator.reconcile.ownership import owned_by

SCRATCH = "/trimtab/scratch"
SANDBOX = "/trimtab/sandbox"
_SOURCES = "/trimtab/sources"
_SOURCES_VOLUME = "sources"
SHARED_PORTS = "rl.trimtab.dev/shared-ports"
"""On the development node, pods with the same value here have the same ports; see docs/development-cluster.md."""
SHARED_HOST = "TRIMTAB_HOST_SHARED"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the pod's own
_TEMPORARY = "/tmp"  # noqa: S108 - the sandbox's own
_TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - where Kubernetes would put one
_PROBES = "probes"
_PROBE_PORT = ProbeSettings.model_fields["port"].default
_ENGINE_PORT = 30_000
_RENDEZVOUS_ADDRESS = "MASTER_ADDR"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, kw_only=True)
class PodSite:
    """What pods of one owner have in common."""

    owner: Object
    job: str
    image: str
    environment: Mapping[str, str]
    secret: str
    """Name of the job's Secret."""
    secret_files: Mapping[str, str]
    """What these pods are shown of it: keys by the name of the file that each is in."""
    manifest: str
    """Name of the ConfigMap with the manifest."""
    code: str | None = None
    """Name of the user's ConfigMap with the workflow's files."""
    ranks: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets, for templates that name none."""
    requests: Mapping[str, str] = field(default_factory=dict)
    """Of the main container, for resources that neither the manifest nor the template names."""
    engine_requests: Mapping[str, str] = field(default_factory=dict)
    own_command: bool = False
    """The template has a command of its own, which may not serve our probes."""


def render_pod(plan: PodPlan, site: PodSite) -> Object:
    ports = _ports(plan, site)
    chosen = {"spec": _chosen(plan, site)}
    sidecars = [entry.name for entry in plan.containers if entry.sidecar]
    template = laid_out(plan.template, sidecars=sidecars)
    pod = merged(merged(chosen, template), _ours(plan, site, ports))
    pod["spec"] = completed(pod["spec"], like=_any_container(site), sidecars=sidecars)
    if site.pull_secrets and "imagePullSecrets" not in template["spec"]:
        pod["spec"]["imagePullSecrets"] = [{"name": name} for name in site.pull_secrets]
    for entry in plan.containers:
        if not entry.sealed:
            _request(pod, entry, site.engine_requests if entry.sidecar or entry.before else site.requests)
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def preferring_others(pod: Object, *, node: str) -> Object:
    """The same for nodes other than this one, if there are such: a node that has died is ready for a while to come."""
    others = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]}
    affinity = pod["spec"].get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    preferred = [*(of_nodes.get(_PREFERRED) or ()), {"weight": 100, "preference": others}]
    return {
        **pod,
        "spec": {**pod["spec"], "affinity": {**affinity, "nodeAffinity": {**of_nodes, _PREFERRED: preferred}}},
    }


def _request(pod: dict[str, Any], entry: ContainerPlan, amounts: Mapping[str, str]) -> None:
    """Resource by resource, because a limit alone is a request too, and may be less than ours."""
    containers = pod["spec"][_list_of(entry)]
    container = next(container for container in containers if container["name"] == entry.name)
    resources = container.get("resources") or {}
    named = {*(resources.get("requests") or {}), *(resources.get("limits") or {})}
    added = {name: amount for name, amount in amounts.items() if name not in named}
    if added:
        container["resources"] = {**resources, "requests": {**(resources.get("requests") or {}), **added}}


def _chosen(plan: PodPlan, site: PodSite) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [],
        "initContainers": [],
    }
    if plan.runtime_class is not None:
        spec["runtimeClassName"] = plan.runtime_class
    for entry in plan.containers:
        container: dict[str, Any] = {"name": entry.name, **_any_container(site)}
        if entry.image is not None:
            container["image"] = entry.image
        if entry.sealed:
            container["securityContext"] = {**container["securityContext"], "readOnlyRootFilesystem": True}
        resources = entry.resources.model_dump(mode="json")
        if any(resources.values()):
            container["resources"] = {name: amounts for name, amounts in resources.items() if amounts}
        if not entry.sidecar and not entry.before and not site.own_command:
            container |= _health(_probes(plan, site))
        spec[_list_of(entry)].append(container)
    return spec


def _any_container(site: PodSite) -> dict[str, Any]:
    return {
        "image": site.image,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _probes(plan: PodPlan, site: PodSite) -> str:
    """The port's name. Ranks on the development node share ports of one name, and each needs its own of these."""
    return f"{_PROBES}-{plan.name.rpartition('-')[2]}" if plan.gang and site.ranks > 1 else _PROBES


def _health(port: str) -> dict[str, Any]:
    """Ten minutes to come up; then the main loop may be silent for a minute, as /healthz says it, and then some."""

    def probe(path: str, **limits: int) -> dict[str, Any]:
        return {"httpGet": {"path": path, "port": port}, "timeoutSeconds": 5, **limits}

    return {
        "startupProbe": probe("/healthz", periodSeconds=2, failureThreshold=300),
        "readinessProbe": probe("/readyz", periodSeconds=2, failureThreshold=3),
        "livenessProbe": probe("/healthz", periodSeconds=10, failureThreshold=6),
    }


def _ours(plan: PodPlan, site: PodSite, ports: Mapping[str, int]) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": plan.name,
        "namespace": site.owner["metadata"]["namespace"],
        "labels": {
            **site.labels,
            labels.JOB: site.job,
            labels.OWNER: plan.owner,
            labels.ROLE: plan.role,
            labels.REVISION: plan.revision,
            labels.ATTEMPT: str(plan.attempt),
        },
        "ownerReferences": owned_by(site.owner),
    }
    spec: dict[str, Any] = {
        "restartPolicy": plan.restart.value,
        "terminationGracePeriodSeconds": int(plan.grace_s),
        "containers": [],
        "initContainers": [],
        "volumes": _volumes(plan, site),
    }
    if plan.gang:
        spec["schedulingGates"] = [{"name": GANG_GATE}]
    if plan.gang and site.ranks > 1:
        metadata["annotations"] = {SHARED_PORTS: rendezvous_group(site.owner, attempt=plan.attempt)}
        spec |= {"hostname": plan.name, "subdomain": plan.owner}
    for entry in plan.containers:
        container: dict[str, Any] = {
            "name": entry.name,
            "command": list(entry.command),
            "args": None,
            "env": _sealed_environment(entry) if entry.sealed else _environment(entry, plan, site, ports),
            "ports": [
                {"name": name, "containerPort": number} for name, number in _own_ports(entry, plan, ports).items()
            ],
            "volumeMounts": _sealed_mounts() if entry.sealed else _mounts(entry, plan),
        }
        if entry.sidecar:
            container["restartPolicy"] = "Always"
        spec[_list_of(entry)].append(container)
    return {"metadata": metadata, "spec": spec}


def _list_of(entry: ContainerPlan) -> str:
    return "initContainers" if entry.sidecar or entry.before else "containers"


def _ports(plan: PodPlan, site: PodSite) -> dict[str, int]:
    """Of all containers together, by name: they share one network."""
    engines = [port for entry in plan.containers for port in entry.ports]
    ports = {_probes(plan, site): int(_PROBE_PORT)}
    ports |= {f"engine-{number}": _ENGINE_PORT + number for number in range(len(engines))}
    if plan.gang:
        ports[PORT_NAME] = rendezvous_port(site.owner["metadata"]["uid"], attempt=plan.attempt)
    return ports


def _own_ports(entry: ContainerPlan, plan: PodPlan, ports: Mapping[str, int]) -> dict[str, int]:
    if entry.before:
        return {}
    if not entry.sidecar:
        return {name: number for name, number in ports.items() if not name.startswith("engine-")}
    known = [port for other in plan.containers for port in other.ports]
    return {f"engine-{known.index(port)}": ports[f"engine-{known.index(port)}"] for port in entry.ports}


def _environment(entry: ContainerPlan, plan: PodPlan, site: PodSite, ports: Mapping[str, int]) -> list[dict[str, Any]]:
    """In an order in which each may refer to those before it."""
    values = {_port_variable(name): str(number) for name, number in ports.items()}
    engines = [port for other in plan.containers for port in other.ports]
    values |= {name: f"$({_port_variable(f'engine-{number}')})" for number, name in enumerate(engines)}
    values |= {"JOB_FILE": JOB_FILE, "JOB_FOLDER": JOB_FOLDER, "SCRATCH": SCRATCH}
    values |= {"FETCHED": f"{_SOURCES}/places"} if _fetches(plan) else {}
    if plan.gang:
        values[SHARED_HOST] = rendezvous_host(plan.owner, ranks=site.ranks)
        values |= {_RENDEZVOUS_ADDRESS: f"$({SHARED_HOST})", "MASTER_PORT": f"$({_port_variable(PORT_NAME)})"}
    if not entry.sidecar:
        # An engine dials nothing.
        values |= {"SANDBOX": SANDBOX} if _sandboxed(plan) else {}
        values |= {**site.environment, "TRIMTAB_PROBES__PORT": f"$({_port_variable(_probes(plan, site))})"}
    values |= entry.environment
    listed: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    return listed + [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}
        for name, secret in entry.secrets.items()
    ]


def _sealed_environment(entry: ContainerPlan) -> list[dict[str, Any]]:
    """What its own arguments refer to. It has no secrets."""
    return [{"name": name, "value": value} for name, value in {"SANDBOX": SANDBOX, **entry.environment}.items()]


def _sandboxed(plan: PodPlan) -> bool:
    return any(entry.sealed for entry in plan.containers)


def _fetches(plan: PodPlan) -> bool:
    return any(entry.before for entry in plan.containers)


def _brings_sources(plan: PodPlan) -> bool:
    """The template has a volume for them, which the pods of a node may share: then they fetch once."""
    spec = plan.template.get("spec")
    volumes = spec.get("volumes") if isinstance(spec, Mapping) else None
    return any(isinstance(volume, Mapping) and volume.get("name") == _SOURCES_VOLUME for volume in volumes or ())


def _port_variable(name: str) -> str:
    """As the development node sets it, where pods share ports; elsewhere the number we chose holds."""
    return "TRIMTAB_PORT_" + name.upper().replace("-", "_")


def _volumes(plan: PodPlan, site: PodSite) -> list[dict[str, Any]]:
    manifest: list[dict[str, Any]] = [{"configMap": {"name": site.manifest}}]
    if site.code is not None:
        manifest.insert(0, {"configMap": {"name": site.code}})
    items = [{"key": key, "path": file} for file, key in site.secret_files.items()]
    # The socket, and what is in memory anyway: nobody can fill a node's disk through it.
    sandbox = [
        {"name": "sandbox", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "sandbox-disk", "emptyDir": {"medium": "Memory"}},
        {"name": "sandbox-token", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    return [
        *(sandbox if _sandboxed(plan) else ()),
        *([{"name": _SOURCES_VOLUME, "emptyDir": {}}] if _fetches(plan) and not _brings_sources(plan) else ()),
        {"name": "job", "projected": {"sources": manifest}},
        {"name": "secrets", "secret": {"secretName": site.secret, "items": items}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]


def _sealed_mounts() -> list[dict[str, Any]]:
    """Kubernetes mounts no token where something is mounted already, whatever the pod or its account says."""
    return [
        {"name": "sandbox", "mountPath": SANDBOX},
        {"name": "sandbox-disk", "mountPath": _TEMPORARY},
        {"name": "sandbox-token", "mountPath": _TOKEN_FOLDER, "readOnly": True},
    ]


def _mounts(entry: ContainerPlan, plan: PodPlan) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "job", "mountPath": JOB_FOLDER, "readOnly": True},
        {"name": "scratch", "mountPath": SCRATCH},
        {"name": "shared-memory", "mountPath": _SHARED_MEMORY},
    ]
    if _fetches(plan):
        mounts.append({"name": _SOURCES_VOLUME, "mountPath": _SOURCES, **({} if entry.before else {"readOnly": True})})
    if not entry.sidecar and not entry.before and _sandboxed(plan):
        mounts.append({"name": "sandbox", "mountPath": SANDBOX})
    if not entry.sidecar:
        mounts.insert(1, {"name": "secrets", "mountPath": SECRETS_FOLDER, "readOnly": True})
    return mounts
