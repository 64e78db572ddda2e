"""How this program was called, for commands that it prints and that people paste."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def invoked_as() -> str:
    """What to write for `trimtab`."""
    program = Path(sys.argv[0])
    if program.name != "trimtab":
        return f"{shlex.quote(sys.executable)} -m trimtab.cli.main"
    found = shutil.which("trimtab")
    if found is not None and Path(found).resolve() == program.resolve():
        return "trimtab"
    return shlex.quote(str(program))
