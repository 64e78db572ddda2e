"""`trimtab dev up` and `trimtab dev preempt` as a person starts them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.devcluster.bench import Bench, container, pod
from trimtab.cli.main import main
from trimtab.embedded.kube.assets import ControlPlaneAssets

pytestmark = pytest.mark.slow


def test_a_preempted_pod_says_so_and_goes(bench: Bench) -> None:
    slow = container("trap 'sleep 4; exit 0' TERM; while true; do sleep 0.05; done")
    bench.apply(pod("spot", slow))
    bench.ready("spot")
    arguments = ["dev", "preempt", "spot", "-n", bench.namespace, "--kubeconfig", str(bench.plane.kubeconfig())]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    leaving = bench.get("spot")
    conditions = {condition["type"]: condition["status"] for condition in leaving["status"]["conditions"]}
    assert conditions["DisruptionTarget"] == "True"
    assert "deletionTimestamp" in leaving["metadata"]
    bench.gone("spot")
    again = CliRunner().invoke(main, arguments)
    assert (again.exit_code, 'pods "spot" not found' in again.output) == (1, True)


def test_a_cluster_comes_up_runs_a_pod_and_goes(assets: ControlPlaneAssets, tmp_path: Path) -> None:
    arguments = ("dev", "up", "--data-folder", str(tmp_path), "--capacity", "cpu=3")
    command = [sys.executable, "-m", "trimtab.cli.main", *arguments]
    with (tmp_path / "err").open("w") as errors:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert running.stdout is not None
        # It ends with this line, or with its output where it fails.
        said = next((line for line in running.stdout if "Ctrl-C stops everything" in line), "")
        assert str(tmp_path / "node" / "node.log") in said, (tmp_path / "err").read_text()

        def kubectl(*arguments: str, stdin: str | None = None) -> str:
            config = ["--kubeconfig", str(tmp_path / "admin.kubeconfig")]
            done = subprocess.run(
                [str(assets.kubectl), *config, *arguments], input=stdin, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        kubectl("apply", "-f", "-", stdin=json.dumps(pod("hello", container("echo hello"), restartPolicy="Never")))
        kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/hello", "--timeout=300s")
        assert kubectl("logs", "hello") == "hello\n"
        assert kubectl("get", "node", "development", "-o", "jsonpath={.status.capacity.cpu}") == "3"
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(600) == 0
        assert running.stdout is not None
        running.stdout.close()


def test_capacity_that_is_none_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["dev", "up", "--data-folder", str(tmp_path), "--capacity", "cpu=many"])
    assert refused.exit_code == 2
    assert "'many' is no quantity" in refused.output
