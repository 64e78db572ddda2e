"""Prints the quickstart's manifest with absolute paths: pods of a cluster have no folder that a manifest lies in.

python -m examples.quickstart.absolute | kubectl apply -f -
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

FOLDER = Path(__file__).resolve().parent


def main() -> None:
    manifest = yaml.safe_load((FOLDER / "job.yaml").read_text(encoding="utf-8"))
    spec = manifest["spec"]
    for policy in spec["policies"]:
        policy["model"]["uri"] = str(FOLDER / policy["model"]["uri"])
    for source in spec["data"]["prompts"]:
        source["jsonl"]["uri"] = str(FOLDER / source["jsonl"]["uri"])
    yaml.safe_dump(manifest, sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
