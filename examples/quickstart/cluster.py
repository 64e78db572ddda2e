"""Writes the code that the quickstart's pods run into the ConfigMap of cluster.yaml, so that one file is all a cluster
needs.

python -m examples.quickstart.cluster
"""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("cluster.yaml")
_EXAMPLES = Path(__file__).parents[1]
# Keys of a ConfigMap have no slashes; the manifest's volume says where each lies.
_SOURCES = {
    "slow_tool.py": "quickstart/slow_tool.py",
    "make.py": "quickstart/make.py",
    "prompts.py": "quickstart/prompts.py",
    "tiny_model.py": "tiny_model.py",
    "largest_digit.py": "largest_digit.py",
}
_BEGIN, _END = "\ndata:\n", "---\n"


def with_code(text: str) -> str:
    """The manifest, its first document holding the examples' files as they are now."""
    head, _, rest = text.partition(_BEGIN)
    _, _, job = rest.partition(_END)
    return head + _BEGIN + "".join(_entry(key, _EXAMPLES / path) for key, path in _SOURCES.items()) + _END + job


def _entry(key: str, file: Path) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    return f"  {key}: |\n" + "".join(f"    {line}\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    FILE.write_text(with_code(FILE.read_text(encoding="utf-8")), encoding="utf-8")
