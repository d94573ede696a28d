"""Conformance records, and devices held against them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortconv import nnapi
from ortconv.cli import main
from ortconv.errors import FormatError, UsageError
from ortconv.nnapi.conformance.check import Mode
from ortconv.nnapi.conformance.run import Conformance, ModeCount, OperationCount, check_device
from ortconv.nnapi.conformance.specs import Record, tolerance
from tests.conformance_records import Arrays, relu, write_records

CPU = "nnapi-reference"


def on(name: str, folder: Path, **options: Any) -> Conformance:
    device = nnapi.get_device(name) if name == CPU else nnapi.load_device(name)
    return check_device(device, folder, **options)


class OffByOne(nnapi.Device):
    """Computes what the CPU does, plus one."""

    name, version, type, level = "off", "1", nnapi.DeviceType.ACCELERATOR, nnapi.FeatureLevel.LEVEL_4
    capabilities = nnapi.Capabilities.uniform(nnapi.Performance(0.1, 0.1))

    def supported_operations(self, model: nnapi.Model) -> list[bool]:
        return [True] * len(model.operations)

    def prepare(self, model: nnapi.Model, options: nnapi.PrepareOptions) -> nnapi.PreparedModel:
        return _Off(nnapi.get_device(CPU).prepare(model, options))


class _Off(nnapi.PreparedModel):
    def __init__(self, inner: nnapi.PreparedModel) -> None:
        self.inner = inner

    def execute(self, inputs: Sequence[Any], *given: Any) -> tuple[list[nnapi.Tensor], nnapi.Timing]:
        results, timing = self.inner.execute(inputs, *given)
        return [nnapi.Tensor(one, np.asarray(one.array + 1, one.array.dtype)) for one in results], timing


def test_the_cpu_passes_in_every_mode(tmp_path: Path) -> None:
    found = on(CPU, write_records(tmp_path))
    assert (found.device, found.records, found.failures) == (CPU, 5, [])
    assert found.modes == [ModeCount(mode, 5, 0, 0) for mode in ("sync", "async", "burst", "fenced")] + [
        ModeCount("dynamic", 4, 0, 1)  # a record that must be refused has no dynamic form
    ]
    assert found.operations == [OperationCount("ADD", 2, 5, 0, 0), OperationCount("RELU", 1, 19, 0, 1)]


def test_a_wrong_result_fails(tmp_path: Path) -> None:
    found = on(CPU, write_records(tmp_path, wrong=True), modes=[Mode.SYNC])
    (failure,) = found.failures
    assert (failure.spec, failure.record, failure.mode) == ("V1_0/small", "relu_wrong", "sync")
    assert failure.reason == "output 0 is off in 1 of 3 elements: 2.5, not 2.6, at 2"


def test_a_wrong_driver_fails(tmp_path: Path) -> None:
    found = check_device(OffByOne(), write_records(tmp_path), modes=[Mode.ASYNC])
    assert [one.record for one in found.failures] == ["relu", "relu_again", "add"]  # 8 bits may be off by one
    assert found.modes == [ModeCount("async", 2, 3, 0)]


def test_a_device_skips_records_that_it_does_not_support(tmp_path: Path) -> None:
    found = on("npu-int8", write_records(tmp_path), modes=[Mode.SYNC])
    assert found.modes == [ModeCount("sync", 1, 0, 4)]  # it supports 8 bits alone


def test_records_are_selected(tmp_path: Path) -> None:
    folder = write_records(tmp_path)
    files: list[str] = []
    found = on(CPU, folder, modes=[Mode.SYNC], operations=["RELU"], variations=False, progress=files.append)
    assert (found.records, files) == (3, ["V1_0/small"])
    assert found.operations == [OperationCount("RELU", 1, 3, 0, 0)]
    with pytest.raises(UsageError, match="there is no operation 'RELUU'") as error:
        on(CPU, folder, operations=["RELUU"])
    assert "RELU" in str(error.value.hint)
    with pytest.raises(UsageError, match="no record with operation SUB is selected"):
        on(CPU, folder, modes=[Mode.SYNC], operations=["RELU", "SUB"])


def test_an_execution_that_must_be_refused(tmp_path: Path) -> None:
    arrays = Arrays()
    record = relu(arrays, "fine", (0.0, 0.0, 2.5), expect_failure=True)
    (tmp_path / "a").mkdir()
    content = json.dumps({"arrays": arrays.stored, "records": [record]}).encode()
    (tmp_path / "a" / "b.json.gz").write_bytes(gzip.compress(content))
    (failure,) = on(CPU, tmp_path, modes=[Mode.BURST]).failures
    assert failure.reason == "it must be refused, and was executed"


def test_a_file_without_records(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'{"arrays": [], "records": []}'))
    with pytest.raises(UsageError, match="no record is selected"):
        on(CPU, tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", *map(gzip.compress, (b"[1]", b"{", b'{"arrays": [], "records": [{}]}', b"[" * 100_000))],
    ids=["empty", "not compressed", "a list", "half of an object", "a record of nothing", "nested"],
)
def test_files_of_another_format(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(content)
    with pytest.raises(FormatError, match="not a file of conformance records"):
        on(CPU, tmp_path)


def test_a_folder_without_records(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no conformance records"):
        on(CPU, tmp_path)


@pytest.mark.parametrize(
    ("kind", "relaxed", "name", "want"),
    [
        ("TENSOR_FLOAT32", False, "a", 1e-5),
        ("TENSOR_FLOAT32", True, "a", 5 / 1024),
        ("TENSOR_FLOAT16", False, "a", 5 / 1024),
        ("TENSOR_QUANT8_ASYMM", False, "a", 1.0),
        ("TENSOR_QUANT8_ASYMM", False, "mobilenet_quantized", 3.0),
        ("TENSOR_BOOL8", False, "a", 0.0),
        ("TENSOR_INT32", False, "a", 1.0),
    ],
)
def test_tolerances(kind: str, relaxed: bool, name: str, want: float) -> None:
    record: Record = relu(Arrays(), name, (0.0, 0.0, 2.5), relaxed=relaxed)  # type: ignore[assignment]
    assert tolerance(record, kind)["absolute"] == want


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, page = write_records(tmp_path / "a"), write_records(tmp_path / "b", wrong=True), tmp_path / "page.html"
    assert main(["nnapi", "conformance", "--specs", str(good), "--html", str(page)]) == 0
    assert "none of 5 records fails" in capsys.readouterr().out
    assert "<td>RELU</td>" in page.read_text("utf-8")
    assert main(["nnapi", "conformance", "--specs", str(bad), "--mode", "sync"]) == 4
    printed = capsys.readouterr()
    assert "relu_wrong" in printed.out
    assert "1 of 6 records fail" in printed.err
