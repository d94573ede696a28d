"""The command `ortconv`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    # Several BLAS threads make small models slower and results depend on the machine; numpy reads this when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ortconv.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
