"""Write the generated documentation: the command reference from the program's own help, the table of passes from the rules.

python docs/generate.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from click.testing import CliRunner

from ortconv.cli import VERBS, cli
from ortconv.optimizer.catalogue import entries

FOLDER = Path(__file__).parent
NOTE = "This page is written by `make docs` from the program itself.\n"


def commands() -> str:
    """The command reference."""
    parts = [f"# Commands\n\n{NOTE}"]
    for arguments in ([], *([verb] for verb in VERBS)):
        name = " ".join(["ortconv", *arguments])
        shown = CliRunner().invoke(cli, [*arguments, "--help"], prog_name="ortconv", terminal_width=100).output
        parts.append(f"\n## {name}\n\n```\n{shown.rstrip()}\n```\n")
    return "".join(parts)


def passes() -> str:
    """The table of passes."""
    rows = [
        f"# Passes\n\n{NOTE}\nIn the order in which the levels run them.\n\n| pass | level | what it does |\n|---|---|---|\n"
    ]
    for entry in entries():
        text = "<br>".join(line.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*") for line in entry.doc)
        rows.append(f"| {entry.name} | {entry.level} | {text} |\n")
    return "".join(rows)


PAGES = {"commands.md": commands, "passes.md": passes}

if __name__ == "__main__":
    for name, write in PAGES.items():
        page, text = FOLDER / name, write()
        if "--check" not in sys.argv[1:]:
            page.write_text(text, encoding="utf-8")
        elif page.read_text(encoding="utf-8") != text:
            sys.exit(f"{name} is out of date: run `make docs`")
