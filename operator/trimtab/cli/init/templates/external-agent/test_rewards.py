"""The reward of what an agent may print, and the agent against an endpoint of ours."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

from rewards import score

PROMPT = {"prompt": "What is 17 + 25?", "answer": "42"}


def test_the_last_number_counts() -> None:
    for output, reward in (("17 + 25 = 42", 1.0), ("42, or 43", 0.0), ("", 0.0)):
        assert score(SimpleNamespace(prompt=PROMPT, output=output)) == reward


class Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"choices": [{"message": {"content": f"{asked['model']}: 42"}}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


def test_the_agent_asks_its_provider() -> None:
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = os.environ | {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "OPENAI_API_KEY": "key"}
    agent = Path(__file__).with_name("agent.py")
    done = subprocess.run(
        [sys.executable, agent], input=json.dumps(PROMPT), env=environment, capture_output=True, text=True, timeout=60
    )
    server.shutdown()
    server.server_close()
    assert done.stdout == "solver: 42", done.stderr
