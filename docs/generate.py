"""Write the generated documentation: the command reference, from the program's own help.

python docs/generate.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from click.testing import CliRunner

from ortconv.cli import VERBS, cli

TARGET = Path(__file__).parent / "commands.md"
HEAD = "# Commands\n\nThis page is written by `make docs` from the program's own help.\n"


def reference() -> str:
    """The page."""
    parts = [HEAD]
    for arguments in ([], *([verb] for verb in VERBS)):
        name = " ".join(["ortconv", *arguments])
        shown = CliRunner().invoke(cli, [*arguments, "--help"], prog_name="ortconv", terminal_width=100).output
        parts.append(f"\n## {name}\n\n```\n{shown.rstrip()}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    text = reference()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if TARGET.read_text() == text else f"{TARGET.name} is out of date: run `make docs`")
    TARGET.write_text(text)
