"""The first seeds of each campaign, and faults that a campaign must find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ortconv
from ortconv.errors import InternalError
from tests.batches import slow_except
from tests.fuzz import damaged, graphs, inputs
from tests.fuzz.campaign import Outcome, run

CAMPAIGNS = (graphs.examine, graphs.examine_settings, damaged.examine_onnx, damaged.examine_ort, inputs.examine)


@pytest.mark.slow
@pytest.mark.parametrize("examine", CAMPAIGNS, ids=lambda examine: f"{examine.__module__[11:]}-{examine.__name__}")
def test_first_seeds(examine: Callable[[int], Outcome]) -> None:
    assert [found for seed in range(60) if (found := examine(seed)).fault] == []


@pytest.mark.parametrize(
    "chosen",
    slow_except([one for one in inputs.INPUTS if one.name != "ortconv.toml"], inputs.INPUTS),
    ids=lambda chosen: chosen.name,
)
def test_inputs_without_damage_are_read(chosen: inputs.Input) -> None:
    for command in chosen.commands:
        code, shown = inputs.run(chosen, command, chosen.data)
        assert code in (0, 4, 7), shown


@pytest.mark.parametrize(("error", "kind"), [(ValueError("wrong"), "raw exception"), (InternalError("wrong"), "bug")])
def test_exceptions_are_faults(error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ortconv, "convert", fail)
    found = damaged.examine_onnx(0)
    assert found.kind == kind
    assert "wrong" in found.fault


def test_a_wrong_result_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(source: Path, result: Path) -> None:
        made.append(graphs.made(12)[0])
        result.with_suffix(".onnx").write_bytes(made[-1].SerializeToString())

    made: list[object] = []
    monkeypatch.setattr(ortconv, "convert", convert)
    assert graphs.examine(0).kind == "differs"


@pytest.mark.slow
def test_a_dead_process_is_a_fault_of_its_seed_alone(tmp_path: Path) -> None:
    log = tmp_path / "faults.jsonl"
    counts = run(_dies_at_2, range(5), 1, log)
    assert counts == {"right": 4, "CrashError": 1}
    assert log.read_text().startswith('{"seed": 2, "kind": "CrashError"')


def _dies_at_2(seed: int) -> Outcome:
    if seed == 2:
        import os

        os.abort()
    return Outcome("right")
