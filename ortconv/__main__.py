"""The command `ortconv`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortconv.errors import OrtconvError

SUPERVISED = ("check", "compare", "convert", "nnapi", "partition", "run")
"""The verbs that pass models to native code. They run in a child process, so that a crash becomes an error."""


def main() -> None:
    _prepare_streams()
    if sys.argv[1:2] and sys.argv[1] in SUPERVISED and hasattr(os, "fork") and not os.environ.get("ORTCONV_DEBUG"):
        from ortconv.supervisor import supervised

        os._exit(supervised(_run, _died))  # It has printed nothing, or the message of a death, which is flushed.
    from ortconv import process

    process.end(_run())


def _run() -> int:
    from ortconv import process

    process.take_over()
    from ortconv import cli

    return cli.main(sys.argv[1:])


def _died(error: OrtconvError) -> int:
    from ortconv import cli

    return cli.report(sys.argv[1:], error)


def _prepare_streams() -> None:
    """Open closed standard streams on the null device: otherwise the next opened file would get their numbers. Escape characters
    that the encoding of a stream lacks.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
