"""A pod's own /etc/hosts, where its `hostAliases` ask for one: names that this machine cannot look up, as it has no DNS
of the cluster.
"""

from __future__ import annotations

from pathlib import Path

from trimtab.devcluster.container.host_view import Mount
from trimtab.kube.resources import Object

_HOSTS = Path("/etc/hosts")


def hosts_text(pod: Object, *, of_the_host: str) -> str:
    """The host's entries, then the pod's, a line for each address."""
    entries = [f"{alias['ip']}\t{' '.join(alias.get('hostnames') or ())}" for alias in _aliases(pod)]
    return "\n".join((of_the_host.rstrip("\n"), *entries, ""))


def hosts_mounts(pod: Object, *, folder: Path) -> list[Mount]:
    """Writes the file into the pod's folder; nothing for pods without aliases, which see the host's."""
    if not _aliases(pod):
        return []
    file = folder / "hosts"
    file.write_text(hosts_text(pod, of_the_host=_HOSTS.read_text(encoding="utf-8") if _HOSTS.exists() else ""))
    return [Mount(source=file, target=_HOSTS, read_only=True)]


def _aliases(pod: Object) -> list[dict[str, list[str]]]:
    return list(pod["spec"].get("hostAliases") or ())
