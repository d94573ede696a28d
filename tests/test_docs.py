"""The documentation says what the program does."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT


def test_generated_pages_are_up_to_date() -> None:
    subprocess.run([sys.executable, ROOT / "docs/generate.py", "--check"], check=True)
