"""The command `ortconv`."""

from __future__ import annotations

import os
import sys

from ortconv import process


def main() -> None:
    process.take_over()
    _open_closed_streams()
    from ortconv import cli

    process.end(cli.main(sys.argv[1:]))


def _open_closed_streams() -> None:
    """Open closed standard streams on the null device. Else the next opened file would get their number."""
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
