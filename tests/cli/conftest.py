"""What tests of the command line share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import pytest

from ortconv.cli import main
from ortconv.optimizer.engine import New, rule
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.pattern import Match, P


class Printed(Protocol):
    def __call__(self, *arguments: object, code: int = 0) -> Any: ...


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Runs a command line with --json, which must exit with a code; the document that it prints."""

    def run(*arguments: object, code: int = 0) -> Any:
        capsys.readouterr()
        found = main([*map(str, arguments), "--json"])
        shown = capsys.readouterr()
        assert found == code, shown.err
        return json.loads(shown.out)

    return run


@pytest.fixture
def wrong_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The basic level has one pass, WrongFusion, which changes what a model computes."""

    @rule("WrongFusion", P("Relu", "x"))
    def wrong(m: Match) -> New:
        """Relu(x) -> Tanh(x), which is not the same"""
        return New("Tanh", [m.x])

    monkeypatch.setattr("ortconv.optimizer.basic.PASSES", (Pass("WrongFusion", wrong),))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
