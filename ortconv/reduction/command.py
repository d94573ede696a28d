"""A command that fails on a model, and the check whether it fails in the same way on another one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ortconv.errors import UsageError
from ortconv.process import limit_data
from ortconv.wording import command_line

PLACE = "{}"
"""The placeholder for the model's path in a command."""

LATE = 124
"""The exit code of a command that exceeded its time limit, as with timeout(1)."""

LARGEST_OUTPUT = 1 << 20
"""Number of bytes of output that are kept, from its end."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of a command: its exit code, or 128 plus the signal that killed it, and its output, stderr included."""

    exit_code: int
    output: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the shell. {} in it is the path of a model, which comes last if there is no {}.

    It runs in a process group of its own, which is killed as a whole at the end of its time. `bytes` is the memory that
    each of its processes may allocate, where the system has such limits.
    """

    text: str
    seconds: float | None = None
    bytes: int | None = None

    def line(self, path: Path) -> str:
        """The command for the model at this path."""
        quoted = command_line([str(path)])
        return self.text.replace(PLACE, quoted) if PLACE in self.text else f"{self.text} {quoted}"

    def run(self, path: Path) -> CommandResult:
        """Run the command for the model at this path, in this folder, without input."""
        if not self.text.strip():
            raise UsageError("the command to check with is empty", hint="such as --check 'ortconv run {}'")
        limit = None if self.bytes is None or sys.platform != "linux" else partial(limit_data, self.bytes)
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                self.line(path),
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=os.name == "posix",
                preexec_fn=limit,
            )
            try:
                code = process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                code = LATE
            finally:
                _kill(process)
            return CommandResult(code if code >= 0 else 128 - code, _tail(output))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of a command."""
    with suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _tail(file: BinaryIO) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - LARGEST_OUTPUT, 0))
    return file.read().decode("utf-8", "replace")
