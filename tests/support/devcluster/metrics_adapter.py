"""A server of the external metrics API behind the API server's aggregation layer, with one metric that a test sets."""

from __future__ import annotations

import json
import ssl
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.ports import LOOPBACK

METRIC = "tasks_waiting"
_GROUP, _VERSION = "external.metrics.k8s.io", "v1beta1"
_SERVICE = "metrics-adapter"


@dataclass(kw_only=True)
class MetricsAdapter:
    """Registered in the control plane while it runs. Only the API server's front proxy is let in."""

    plane: ControlPlane
    namespace: str
    folder: Path
    value: int
    asked_by: set[str] = field(default_factory=set)
    """Users for whom the front proxy asked."""

    def __enter__(self) -> Self:
        certificate, key = self.plane.serving_certificate(user=_SERVICE, folder=self.folder)
        tls = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=str(self.plane.data_folder / "front-proxy-ca.crt")
        )
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_cert_chain(certificate, key)
        self._server = ThreadingHTTPServer((LOOPBACK, 0), _handler(self))
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._register()
        return self

    def __exit__(self, *_: object) -> None:
        # A group whose server is gone would keep namespaces from ending.
        self.plane.kubectl("delete", "apiservice", f"{_VERSION}.{_GROUP}")
        self._server.shutdown()
        self._server.server_close()

    def _register(self) -> None:
        port = self._server.server_address[1]
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": _SERVICE, "namespace": self.namespace},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
        }
        registration = {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{_VERSION}.{_GROUP}"},
            "spec": {
                "group": _GROUP,
                "version": _VERSION,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"name": _SERVICE, "namespace": self.namespace, "port": port},
            },
        }
        items = {"apiVersion": "v1", "kind": "List", "items": [service, registration]}
        self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(items))
        self.plane.kubectl("wait", "apiservice", f"{_VERSION}.{_GROUP}", "--for=condition=Available", "--timeout=60s")


def _handler(adapter: MetricsAdapter) -> type[BaseHTTPRequestHandler]:
    root = f"/apis/{_GROUP}/{_VERSION}"
    group_version = {"apiVersion": f"{_GROUP}/{_VERSION}"}

    def answer(path: str) -> dict[str, Any] | None:
        if path == root:
            resource = {"name": METRIC, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            return {"kind": "APIResourceList", "groupVersion": f"{_GROUP}/{_VERSION}", "resources": [resource]}
        if path == f"{root}/namespaces/{adapter.namespace}/{METRIC}":
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            item = {"metricName": METRIC, "metricLabels": {}, "timestamp": now, "value": str(adapter.value)}
            return {"kind": "ExternalMetricValueList", **group_version, "metadata": {}, "items": [item]}
        return None

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            adapter.asked_by.add(self.headers.get("X-Remote-User", ""))
            found = answer(self.path.partition("?")[0])
            content = json.dumps(found or {}).encode()
            self.send_response(HTTPStatus.OK if found is not None else HTTPStatus.NOT_FOUND)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
            """Not on the test's terminal."""

    return Handler
