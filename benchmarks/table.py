"""Runs benchmarks one after the other and prints a table of their bars: `python -m benchmarks.table fabric …`."""

from __future__ import annotations

import json
import subprocess
import sys

from rich.console import Console
from rich.table import Table


def main() -> None:
    table = Table(title="Benchmarks")
    for heading in ("benchmark", "bar", "value", "goal", ""):
        table.add_column(heading, justify="right" if heading in ("value", "goal") else "left")
    missed = 0
    for name in sys.argv[1:]:
        completed = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], stdout=subprocess.PIPE, text=True)
        if completed.returncode != 0:
            raise SystemExit(f"benchmarks.{name} ended with {completed.returncode}")
        line = completed.stdout.strip().splitlines()[-1]
        print(line, flush=True)
        for bar, rated in json.loads(line)["bars"].items():
            comparison = "≤" if rated.get("at_most") else "≥"
            table.add_row(
                name, bar, f"{rated['value']:g}", f"{comparison} {rated['goal']:g}", "ok" if rated["ok"] else "MISSED"
            )
            missed += not rated["ok"]
    Console(width=110).print(table)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
