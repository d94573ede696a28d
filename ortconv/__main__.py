"""The command `ortconv`."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress


def main() -> None:
    # Several BLAS threads make small models slower and results depend on the machine; numpy reads this when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A graph of 20,000 nodes is a million objects that live until the end: looking through them again and again finds nothing.
    gc.set_threshold(500_000, 20, 20)
    from ortconv import cli

    code = cli.main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            stream.flush()
    # All files are written and closed. Taking the interpreter and onnx's registries apart would cost a fifth of a conversion.
    os._exit(code)


if __name__ == "__main__":
    main()
