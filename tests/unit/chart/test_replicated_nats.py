"""Three NATS servers, when they are asked for: they find and believe one another, and sync before they acknowledge."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.support.chart.mounted import volume_named, write_projected
from tests.support.chart.rendering import named, objects, of_kind, values_of
from trimtab.embedded.binaries import find_binary

_POD = "trimtab-nats-1"


def test_one_server_knows_no_others() -> None:
    entries = objects({})
    server = named(entries, "StatefulSet", "trimtab-nats")["spec"]
    assert server["replicas"] == 1
    assert "cluster {" not in named(entries, "ConfigMap", "trimtab-nats")["data"]["nats.conf"]


def test_nats_server_takes_the_configuration(tmp_path: Path) -> None:
    entries = objects(values_of("replicated"))
    pod = named(entries, "StatefulSet", "trimtab-nats")["spec"]["template"]
    write_projected(volume_named(pod, "configuration"), entries, tmp_path)
    file = tmp_path / "nats.conf"
    # Whom to trust is the operator's to say, and resolves accounts by that: tests/cluster/test_chart.py.
    text = re.sub(r"resolver \{.*?\n\}", "", file.read_text(), flags=re.DOTALL).replace("include trust.conf", "")
    file.write_text(text.replace("/etc/nats/", f"{tmp_path}/").replace("/data", f"{tmp_path}/data"))
    (container,) = pod["spec"]["containers"]
    assert [variable["name"] for variable in container["env"]] == ["POD_NAME"]
    said = subprocess.run(
        [find_binary("nats-server"), "-t", "--config", str(file)],
        env={**os.environ, "POD_NAME": _POD}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert "sync_interval: always" in text


def test_servers_find_one_another_by_names_in_their_certificate(tmp_path: Path) -> None:
    entries = objects(values_of("replicated"))
    text = named(entries, "ConfigMap", "trimtab-nats")["data"]["nats.conf"]
    hosts = re.findall(r"tls://([\w.-]+):6222", text)
    assert [host.partition(".")[0] for host in hosts] == [f"trimtab-nats-{number}" for number in range(3)]
    server = named(entries, "StatefulSet", "trimtab-nats")["spec"]
    assert (server["replicas"], server["podManagementPolicy"]) == (3, "Parallel")
    routes = named(entries, "Service", server["serviceName"])["spec"]
    assert (routes["clusterIP"], routes["publishNotReadyAddresses"]) == ("None", True)
    assert {host.partition(".")[2] for host in hosts} == {f"{server['serviceName']}.trimtab-system.svc"}

    write_projected(volume_named(server["template"], "configuration"), entries, tmp_path)
    certificate = x509.load_pem_x509_certificate((tmp_path / "tls.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"*.{server['serviceName']}.trimtab-system.svc" in names.get_values_for_type(x509.DNSName)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert ExtendedKeyUsageOID.CLIENT_AUTH in usage
    assert "verify: true" in text


def test_they_dial_one_another_and_no_one_else() -> None:
    entries = objects(values_of("replicated"))
    policy = named(entries, "NetworkPolicy", "trimtab-nats")["spec"]
    own = {"podSelector": policy["podSelector"]}
    assert policy["ingress"][1] == {"from": [own], "ports": [{"port": 6222, "protocol": "TCP"}]}
    names, servers = policy["egress"]
    assert {port["port"] for port in names["ports"]} == {53}
    assert servers == {"to": [own], "ports": [{"port": 6222, "protocol": "TCP"}]}
    (budget,) = [one for one in of_kind(entries, "PodDisruptionBudget") if one["metadata"]["name"] == "trimtab-nats"]
    assert budget["spec"]["maxUnavailable"] == 1
