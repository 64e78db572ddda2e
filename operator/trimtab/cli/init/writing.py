"""The files of a template, with what is the job's own filled in."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template

from trimtab.cli.init.rows import ROWS

_TEMPLATES = Path(__file__).parent / "templates"
_MANIFEST = "job.yaml"
_HELD_OUT = 40
_SEED = 0


class FileThere(FileExistsError):
    """Nothing was written."""


def write_job(template: str, folder: Path, *, name: str, model: str) -> list[Path]:
    """Raises FileThere when one of the files is there."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in sorted((_TEMPLATES / template).iterdir())}
    # A string of JSON is one of YAML too, whatever is in it.
    texts[_MANIFEST] = Template(texts[_MANIFEST]).substitute(name=name, model=json.dumps(model))
    rows = ROWS[template](_SEED)
    texts |= {"held-out.jsonl": _lines(rows.prompts[:_HELD_OUT]), "train.jsonl": _lines(rows.prompts[_HELD_OUT:])}
    if rows.corpus:
        texts["corpus.jsonl"] = _lines(rows.corpus)
    if there := [folder / file for file in texts if (folder / file).exists()]:
        raise FileThere(f"{there[0]} is there already; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in texts]


def _lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
