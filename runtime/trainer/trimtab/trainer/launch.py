"""`python -m trimtab.trainer.launch`: torchrun with the ranks of one pod, which live and die together, except that how
the first of them failed gets through, and that no rank outlives it. torchrun itself ends with 1 whatever its ranks
ended with; and when it is killed, its ranks go on, as each has a session of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import main as run

from trimtab.fabric.parent_death import PARENT
from trimtab.fabric.pod import EXIT_MISCONFIGURED

_UNCAUGHT = 1
_SIGNALLED = 128
"""A shell says by this much more that a signal ended a process, and by which one."""


def main() -> None:
    os.environ[PARENT] = str(os.getpid())
    try:
        run()
    except ChildFailedError as error:
        sys.exit(exit_code(error.failures.values()))


def exit_code(failures: Iterable[ProcessFailure]) -> int:
    """That of the rank that failed first: the others failed because of it. In the same second, an uncaught exception is
    rather what the death of a neighbour led to. But a rank that says that starting it again would not help is heard,
    whichever it is.
    """
    in_order = sorted(failures, key=lambda failure: (failure.timestamp, failure.exitcode == _UNCAUGHT))
    codes = [failure.exitcode for failure in in_order]
    if EXIT_MISCONFIGURED in codes:
        return EXIT_MISCONFIGURED
    return codes[0] if codes[0] > 0 else _SIGNALLED - codes[0]


if __name__ == "__main__":
    main()
