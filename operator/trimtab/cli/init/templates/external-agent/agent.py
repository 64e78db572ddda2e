"""The agent: nothing here knows of Trimtab. It asks whatever OPENAI_BASE_URL says, also by the openai library."""

from __future__ import annotations

import json
import os
import sys
import urllib.request

_TIMEOUT_S = 100


def ask(question: str) -> str:
    body = {"model": "solver", "messages": [{"role": "user", "content": question}]}
    request = urllib.request.Request(  # noqa: S310 - the address is the gateway's
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
        return str(json.load(response)["choices"][0]["message"]["content"])


if __name__ == "__main__":
    sys.stdout.write(ask(json.load(sys.stdin)["prompt"]))
