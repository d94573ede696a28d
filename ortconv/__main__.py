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
    _open_closed_streams()
    from ortconv import cli

    code = cli.main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            pass
        except OSError as error:
            code = code or 2
            with suppress(OSError):
                os.write(2, f"error: cannot write to {stream.name}: {error.strerror}\n".encode())
    # All files are written and closed. Taking the interpreter and onnx's registries apart would cost a fifth of a conversion.
    os._exit(code)


def _open_closed_streams() -> None:
    """Let streams that the caller closed lead nowhere. Else the next file that is opened would be taken for them."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


if __name__ == "__main__":
    main()
