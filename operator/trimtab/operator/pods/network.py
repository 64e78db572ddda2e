"""The network policies of a job. Its pods dial NATS, object storage, DNS, and the hub and engine servers that its
manifest names; what writes to trackers dials those too. Prometheus dials all of them, and the ranks of one trainer dial
one another. Everything else is closed.

Policies add up: an administrator opens more for all jobs in the chart, and an author for one job by a policy of their
own that selects the job's label. Where a server has a name outside the cluster its addresses are not known here, so its
port is open to the networks that the settings name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from trimtab.api import labels, names
from trimtab.api.job import RLJob
from trimtab.api.source_uri import HubSource
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings, ProbeSettings
from trimtab.fabric.sources.wants import job_wants
from trimtab.kube.resources import NETWORK_POLICIES, Object
from trimtab.operator.reconcile.ownership import owned_by
from trimtab.operator.settings import JobNetworkSettings

_NATS_PORT = 4222
_PORTS = {"http": 80, "https": 443, "tls": _NATS_PORT, "nats": _NATS_PORT, "ws": 80, "wss": 443}
_METRICS_PORT = int(ProbeSettings.model_fields["port"].default)
_HUB = "https://huggingface.co"
_TRACKERS = {"wandb": "https://api.wandb.ai", "trackio": _HUB}
_SERVICE_LABELS = 3
# Metadata services of clouds are there, and hand out the node's own credentials.
_LINK_LOCAL = {"0.0.0.0/0": "169.254.0.0/16", "::/0": "fe80::/10"}

Rule = dict[str, Any]


def job_policy(
    job: Object,
    typed: RLJob,
    *,
    settings: JobNetworkSettings,
    nats: NatsSettings,
    object_store: ObjectStoreSettings,
) -> Object:
    """For all pods of the job."""
    metadata = job["metadata"]
    store = object_store.endpoint_url or "https://s3.amazonaws.com"
    pools = typed.spec.pools
    engines = [pool.engine.url for pool in pools if pool.engine.url is not None]
    engines += [one.endpoint.url for pool in pools for one in pool.engines if one.endpoint is not None]
    hubs = {typed.spec.hub.endpoint or _HUB for want in job_wants(typed.spec) if isinstance(want.source, HubSource)}
    dialled = [_dialled(address, settings) for address in dict.fromkeys((*nats.servers, store, *engines, *hubs))]
    dns = [{"port": port, "protocol": protocol} for port in settings.dns_ports for protocol in ("UDP", "TCP")]
    return _policy(
        job,
        name=f"{metadata['name']}-pods",
        selector={labels.JOB: metadata["name"]},
        ingress=[{"from": [settings.scrapers], "ports": [{"port": _METRICS_PORT, "protocol": "TCP"}]}],
        egress=[{"ports": dns}, *dialled, *settings.egress],
        own={labels.JOB: metadata["name"]},
    )


def tracking_policy(job: Object, typed: RLJob, *, settings: JobNetworkSettings) -> Object:
    """For the pod that writes to trackers, which dials those besides."""
    metadata = job["metadata"]
    servers = [tracker.url or _TRACKERS.get(tracker.type) for tracker in typed.spec.tracking if tracker.folder is None]
    labelled = {labels.JOB: metadata["name"], labels.ROLE: "tracking"}
    return _policy(
        job,
        name=names.tracking_pod_name(metadata["name"]),
        selector=labelled,
        ingress=[],
        egress=[_dialled(server, settings) for server in dict.fromkeys(servers) if server is not None],
        own=labelled,
    )


def ranks_policy(trainer: Object, *, job: str) -> Object:
    """For the ranks of one trainer, which meet one another at ports that collectives choose."""
    name = trainer["metadata"]["name"]
    selector = {labels.JOB: job, labels.OWNER: name, labels.ROLE: "trainer"}
    ranks = [{"podSelector": {"matchLabels": selector}}]
    return _policy(
        trainer,
        name=f"{name}-ranks",
        selector=selector,
        ingress=[{"from": ranks}],
        egress=[{"to": ranks}],
        own={labels.JOB: job, labels.OWNER: name},
    )


def _policy(
    owner: Object,
    *,
    name: str,
    selector: dict[str, str],
    ingress: list[Rule],
    egress: list[Rule],
    own: dict[str, str],
) -> Object:
    return {
        "apiVersion": NETWORK_POLICIES.api_version,
        "kind": NETWORK_POLICIES.kind,
        "metadata": {
            "name": name,
            "namespace": owner["metadata"]["namespace"],
            "labels": own,
            "ownerReferences": owned_by(owner),
        },
        "spec": {
            "podSelector": {"matchLabels": selector},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _dialled(address: str, settings: JobNetworkSettings) -> Rule:
    parts = urlsplit(address if "://" in address else f"nats://{address}")
    port = parts.port or _PORTS.get(parts.scheme, _NATS_PORT)
    peers = list(_peers(parts.hostname or "", settings))
    return {"to": peers, "ports": [{"port": port, "protocol": "TCP"}]}


def _peers(host: str, settings: JobNetworkSettings) -> Iterator[Rule]:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        yield {"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}
        return
    name = host.rstrip(".").split(".")
    if len(name) >= _SERVICE_LABELS and name[2] == "svc":
        yield {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name[1]}}}
        return
    for cidr in settings.server_cidrs:
        excepted = _LINK_LOCAL.get(cidr)
        yield {"ipBlock": {"cidr": cidr} | ({} if excepted is None else {"except": [excepted]})}
