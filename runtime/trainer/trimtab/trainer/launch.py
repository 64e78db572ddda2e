"""`python -m trimtab.trainer.launch`: torchrun, except that a rank's word that starting it again would not help gets
through, and that no rank outlives it. torchrun itself ends with 1 whatever its ranks ended with; and when it is killed,
its ranks go on, as each has a session of its own.
"""

from __future__ import annotations

import os
import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as run

from trimtab.fabric.parent_death import PARENT
from trimtab.fabric.pod import EXIT_MISCONFIGURED


def main() -> None:
    os.environ[PARENT] = str(os.getpid())
    try:
        run()
    except ChildFailedError as error:
        codes = {failure.exitcode for failure in error.failures.values()}
        sys.exit(EXIT_MISCONFIGURED if EXIT_MISCONFIGURED in codes else 1)


if __name__ == "__main__":
    main()
