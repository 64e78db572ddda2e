"""Prints a manifest with absolute paths: pods of a cluster have no folder that a manifest lies in.

python -m examples.absolute examples/remote_pool/job.yaml | kubectl apply -f -
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml


def absolute(file: Path) -> dict[str, Any]:
    """The manifest; folders and files that it names are looked for beside it."""
    folder = file.resolve().parent
    manifest: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    spec = manifest["spec"]
    sources = [*spec["data"]["prompts"], *spec.get("evaluation", {}).get("benchmarks", ())]
    for place in [*(policy["model"] for policy in spec["policies"]), *(source["jsonl"] for source in sources)]:
        place["uri"] = str(folder / place["uri"])
    if "source" in spec["workflow"]:
        spec["workflow"]["source"]["path"] = str(folder / spec["workflow"]["source"]["path"])
    return manifest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    yaml.safe_dump(absolute(parser.parse_args().file), sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
