"""Where promtool comes from: the PATH (Debian's package `prometheus` has it), or a build from its Go module, because no
package on PyPI carries it.

`python -m monitoring.promtool` builds it ahead of the tests, and says where it is.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from trimtab.embedded.go_build import GoProgram, built

_PROMTOOL = GoProgram(
    name="promtool",
    version="v0.315.0",
    package="github.com/prometheus/prometheus/cmd/promtool",
    module=Path(__file__).parent / "promtool_module",
    takes="5 minutes of processor time; apt-get install prometheus has it, too",
    # No rule needs service discovery, which has the clients of many clouds.
    tags="remove_all_sd",
)


def find_promtool() -> Path:
    """Builds it the first time, which takes minutes."""
    on_path = shutil.which("promtool")
    return built(_PROMTOOL) if on_path is None else Path(on_path)


if __name__ == "__main__":
    sys.stdout.write(f"{find_promtool()}\n")
