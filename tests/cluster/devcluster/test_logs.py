"""kubectl logs, through the API server, from the node's own HTTPS API; which lets in no other client."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request

import pytest

from tests.support.devcluster.bench import Bench, container, pod
from trimtab.embedded.kube.control_plane import ControlPlane


@pytest.mark.slow
def test_the_options_of_kubectl_logs(bench: Bench) -> None:
    counting = container("i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; printf unfinished")
    other = container("echo another", name="other")
    bench.apply(pod("talks", counting, other, restartPolicy="Never"))
    bench.phase("talks", "Succeeded")
    lines = bench.logs("talks", "-c", "main").split("\n")
    assert lines == [*(f"line {number}" for number in range(100)), "unfinished"]
    assert bench.logs("talks", "-c", "main", "--tail=3") == "line 98\nline 99\nunfinished"
    assert bench.logs("talks", "-c", "other") == "another\n"
    assert bench.logs("talks", "-c", "main", "--limit-bytes=6") == "line 0"
    stamped = bench.logs("talks", "-c", "other", "--timestamps")
    stamp, text = stamped.split(" ", 1)
    assert text == "another\n"
    assert bench.logs("talks", "-c", "other", f"--since-time={stamp}") == "another\n"
    assert bench.logs("talks", "-c", "other", "--since-time=2100-01-01T00:00:00Z") == ""
    assert bench.logs("talks", "-c", "other", "--since=1h") == "another\n"
    assert "previous terminated container" in bench.kubectl("logs", "talks", "-c", "main", "-p", check=False)


def test_a_shell_in_a_container_is_refused(bench: Bench) -> None:
    bench.apply(pod("stays", container("sleep 600")))
    bench.phase("stays", "Running")
    refused = bench.kubectl("exec", "stays", "--", "ls", check=False)
    assert "not supported on the development node" in refused


def test_follow_ends_with_the_container(bench: Bench) -> None:
    waiting = "echo begun; while [ ! -f /data/go ]; do sleep 0.05; done; echo gone on"
    mounts = [{"name": "data", "mountPath": "/data"}]
    opener = container("sleep 1; touch /data/go", name="opener", volumeMounts=mounts)
    main = container(waiting, volumeMounts=mounts)
    bench.apply(pod("follows", main, opener, restartPolicy="Never", volumes=[{"name": "data", "emptyDir": {}}]))
    bench.says("follows", "begun", "-c", "main")
    assert bench.logs("follows", "-c", "main", "-f") == "begun\ngone on\n"


def test_only_the_api_server_is_let_in(
    control_plane: ControlPlane, bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = f"https://127.0.0.1:{bench.node.ports['kubelet']}/containerLogs/{bench.namespace}/any/main"
    trusting = ssl.create_default_context(cafile=str(control_plane.authority_file))
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        urllib.request.urlopen(url, context=trusting, timeout=120)
    folder = tmp_path_factory.mktemp("stranger")
    # Even an administrator of the cluster, whose certificate has the same authority, has to ask the API server.
    view = ["config", "view", "--raw", "--flatten", "-o", "json"]
    config = json.loads(control_plane.kubectl(*view).stdout)
    user = config["users"][0]["user"]
    for name, entry in (("crt", "client-certificate-data"), ("key", "client-key-data")):
        (folder / name).write_bytes(base64.b64decode(user[entry]))
    trusting.load_cert_chain(folder / "crt", folder / "key")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, context=trusting, timeout=120)
    assert refused.value.code == 403
    refused.value.close()
