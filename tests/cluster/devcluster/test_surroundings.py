"""What a container finds around it: variables, volumes, ports, a file system of its own where it matters."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.support.devcluster.bench import Bench, container, pod


def _config_map(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def _secret(name: str, **data: str) -> dict[str, object]:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}


def test_variables_from_everywhere(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    env = [
        {"name": "PLAIN", "value": "a"},
        {"name": "JOINED", "value": "$(PLAIN)-$(FROM_MAP)-$(MISSING)-$$(PLAIN)"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "credentials", "key": "password"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ROLE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['role']"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}}},
    ]
    main = {
        "name": "main",
        "image": "x",
        "command": ["python", "-c", "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"],
        "args": ["$(JOINED)"],
        "env": env,
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "resources": {"limits": {"memory": "64Mi"}},
    }
    bench.apply(_config_map("settings", FROM_MAP="m"), _secret("credentials", password="hush"))
    bench.apply(pod("told", main, labels={"role": "worker"}, restartPolicy="Never"))
    bench.phase("told", "Succeeded")
    environment, arguments = json.loads(bench.logs("told"))
    expected = {"PLAIN": "a", "JOINED": "a-m-$(MISSING)-$(PLAIN)", "KEY": "hush", "POD": "told", "ROLE": "worker"}
    expected |= {"NODE": "development", "MEMORY": "64", "FROM_MAP": "m", "HOSTNAME": "told"}
    assert {name: environment.get(name) for name in expected} == expected
    assert arguments == ["a-m-$(MISSING)-$(PLAIN)"]
    assert "ABSENT" not in environment
    # Of the host's environment it has what it takes to find programs, and nothing else.
    assert "PYTEST_CURRENT_TEST" not in environment


def test_a_missing_source_is_waited_for(bench: Bench) -> None:
    env = [{"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "k"}}}]
    bench.apply(pod("waits", container("echo $KEY", env=env), restartPolicy="Never"))
    state = bench.until(lambda: bench.state("waits"), lambda state: "CreateContainerConfigError" in str(state))
    assert state["state"]["waiting"]["message"] == 'configmap "later" not found'
    bench.apply(_config_map("later", k="arrived"))
    bench.phase("waits", "Succeeded")
    assert bench.logs("waits") == "arrived\n"


def test_volumes_are_at_their_paths_and_nowhere_else(bench: Bench, tmp_path: Path) -> None:
    script = """
set -e
cat /etc/job/settings.yaml /etc/job/deep/secret; echo
cat /var/run/secrets/own/name; echo
test -s /var/run/secrets/own/token && echo token
echo scratch > /scratch/file && cat /scratch/file
cat /one-file
touch /etc/job/x 2>/dev/null || echo read-only
touch /tmp/private && ls -d /etc/passwd
dd if=/dev/zero of=/dev/shm/shared bs=1k count=1 2>/dev/null
"""
    projected = [
        {"configMap": {"name": "job", "items": [{"key": "settings", "path": "settings.yaml"}]}},
        {"secret": {"name": "hidden", "items": [{"key": "value", "path": "deep/secret"}]}},
    ]
    own = [
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
    ]
    main = container(
        script,
        volumeMounts=[
            {"name": "job", "mountPath": "/etc/job"},
            {"name": "own", "mountPath": "/var/run/secrets/own"},
            {"name": "scratch", "mountPath": "/scratch"},
            {"name": "plain", "mountPath": "/one-file", "subPath": "settings"},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    )
    # The neighbour sees the shared memory, and has a /tmp of its own: neither main's nor the machine's.
    peek = (
        "while [ ! -s /dev/shm/shared ]; do sleep 0.05; done; wc -c </dev/shm/shared;"
        f" [ -e /tmp/private ] || [ -e {tmp_path} ] || echo alone"
    )
    neighbour = container(peek, name="neighbour", volumeMounts=[{"name": "memory", "mountPath": "/dev/shm"}])
    volumes = [
        {"name": "job", "projected": {"sources": projected}},
        {"name": "own", "projected": {"sources": own}},
        {"name": "plain", "configMap": {"name": "job"}},
        {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    bench.apply(_config_map("job", settings="fast\n"), _secret("hidden", value="hush"))
    bench.apply(pod("mounts", main, neighbour, volumes=volumes, restartPolicy="Never", serviceAccountName="default"))
    bench.phase("mounts", "Succeeded", "Failed")
    said = bench.logs("mounts", "-c", "main").split("\n")
    assert said[:8] == ["fast", "hush", "mounts", "token", "scratch", "fast", "read-only", "/etc/passwd"]
    assert bench.logs("mounts", "-c", "neighbour").split() == ["1024", "alone"]
    assert not any(Path(path).exists() for path in ("/etc/job", "/scratch", "/one-file", "/tmp/private"))


def test_a_pods_own_names_lead_where_it_says(bench: Bench) -> None:
    look_up = "import socket; print(socket.gethostbyname('nats.elsewhere.svc'), socket.gethostbyname('localhost'))"
    main = {"name": "main", "image": "x", "command": ["python", "-c", look_up]}
    aliases = [{"ip": "127.0.0.9", "hostnames": ["nats.elsewhere.svc", "nats.elsewhere"]}]
    bench.apply(pod("named", main, hostAliases=aliases, restartPolicy="Never"))
    bench.phase("named", "Succeeded")
    assert bench.logs("named").split() == ["127.0.0.9", "127.0.0.1"]


def test_a_read_only_root_is_read_only(bench: Bench) -> None:
    script = (
        f"touch {Path.home()}/x 2>/dev/null || echo refused; touch /tmp/x && echo tmp; echo x >/dev/null && echo null"
    )
    main = container(script, securityContext={"readOnlyRootFilesystem": True})
    bench.apply(pod("sealed", main, restartPolicy="Never"))
    bench.phase("sealed", "Succeeded")
    assert bench.logs("sealed").split() == ["refused", "tmp", "null"]


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        ({"hostPath": {"path": "/etc"}}, "--allow-host-path"),
        ({"nfs": {"server": "files", "path": "/"}}, "nfs is not supported"),
    ],
)
def test_volumes_that_cannot_be_had_fail_the_pod(bench: Bench, volume: dict[str, object], said: str) -> None:
    mounts = [{"name": "v", "mountPath": "/v"}]
    bench.apply(pod("refused", container("ls /v", volumeMounts=mounts), volumes=[{"name": "v", **volume}]))
    failed = bench.phase("refused", "Failed")["status"]
    assert failed["reason"] == "VolumeNotSupported"
    assert said in failed["message"]


def test_two_pods_with_the_same_port_get_one_each_and_are_probed_there(bench: Bench) -> None:
    server = {
        "name": "main",
        "image": "x",
        "command": ["python", "-u", "-m", "http.server", "--bind", "127.0.0.1", "$(TRIMTAB_PORT_WEB)"],
        "env": [{"name": "TRIMTAB_PORT_WEB", "value": "8000"}],
        "ports": [{"name": "web", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 1},
        "livenessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 60},
    }
    bench.apply(pod("one", server), pod("two", server))
    bench.ready("one")
    bench.ready("two")
    ports = [bench.says(name, "Serving HTTP").split("port ")[1].split(" ")[0] for name in ("one", "two")]
    assert "8000" not in ports
    assert ports[0] != ports[1]


@pytest.mark.slow
def test_probes_decide_about_readiness_and_life(bench: Bench) -> None:
    script = "touch /tmp/alive; sleep 0.5; touch /tmp/ready; sleep 5; rm /tmp/alive; sleep 1000"
    main = container(
        script,
        readinessProbe={"exec": {"command": ["test", "-f", "/tmp/ready"]}, "periodSeconds": 1, "failureThreshold": 1},
        livenessProbe={"exec": {"command": ["test", "-f", "/tmp/alive"]}, "periodSeconds": 1, "failureThreshold": 1},
    )
    bench.apply(pod("probed", main, terminationGracePeriodSeconds=1))
    bench.until(lambda: bench.state("probed"), lambda state: state.get("started") is True)
    bench.ready("probed")
    state = bench.until(lambda: bench.state("probed"), lambda state: state["restartCount"] >= 1)
    assert state["lastState"]["terminated"]["exitCode"] != 0
    bench.has_events("probed", "Unhealthy", "Killing")
