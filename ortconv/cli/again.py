"""Command lines that repeat the present command on other models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ortconv.errors import OrtconvError
from ortconv.wording import command_line


def add_reduce_line(error: OrtconvError, model: Path, *commands: Sequence[str], output: str | None = None) -> None:
    """Add the `ortconv reduce` line to an error's hint. It shrinks the model while these commands, in this order, end with the
    error.

    `output` is a text that distinguishes this failure from others with the same exit code.
    """
    check = " && ".join(" ".join(map(_quoted, ("ortconv", *words))) for words in commands)
    expected = ["--expect-exit", str(error.exit_code), *(["--expect-output", output] if output else [])]
    line = command_line(["ortconv", "reduce", str(model), *expected, "--check", check])
    error.hint = f"{error.hint}; or shrink the model: {line}" if error.hint else f"shrink the model: {line}"


def _quoted(word: str) -> str:
    """A word in the shell's syntax. {} stays unquoted, since `ortconv reduce` replaces it with a quoted path."""
    return command_line([word.replace("{}", "@@")]).replace("@@", "{}")
