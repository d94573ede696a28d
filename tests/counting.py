"""Costs that are the same on every machine: the functions that a call enters, the modules that a process imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def calls(function: Callable[[], object]) -> int:
    """How many Python functions a call enters: its cost, the same on every machine."""
    count = 0

    def enter(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(enter)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def imported(*arguments: str) -> set[str]:
    """The modules that a new interpreter and its children load for a command line."""
    command = [sys.executable, "-v", *arguments]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    return {line.split("'")[1] for line in done.stderr.splitlines() if line.startswith("import '")}
