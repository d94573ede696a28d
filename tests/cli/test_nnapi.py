"""ortconv nnapi dump and benchmark."""

from __future__ import annotations

import json
import os
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortconv.cli import main
from tests.cli.conftest import Printed

EXAMPLE = """
name = "example"
[performance]
default = { exec_time = 0.5, power_usage = 0.5 }
[costs]
launch_us = 5_000_000
"""
BROKEN = """
name = "broken"
[performance]
default = { exec_time = 0.1, power_usage = 0.1 }
[faults]
execute = "OP_FAILED"
"""


@pytest.fixture
def mnist(samples: Path) -> Path:
    return samples / "mnist.onnx"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "example.toml"
    path.write_text(EXAMPLE)
    return path


def test_a_partition_as_a_document(mnist: Path, printed: Printed) -> None:
    (found,) = printed("nnapi", "dump", mnist, "--nnapi-flags", "fp16")["partitions"]
    assert len(found["nodes"]) == 8
    assert found["model"]["relaxed"] is True
    operands, operations = found["model"]["operands"], found["model"]["operations"]
    assert [o["type"] for o in operations] == [
        "TRANSPOSE", "CONV_2D", "MAX_POOL_2D", "CONV_2D", "MAX_POOL_2D", "TRANSPOSE", "RESHAPE", "FULLY_CONNECTED",
    ]  # fmt: skip
    assert {o["device"] for o in operations} == {"sim-any"}
    ends = [operands[i] for i in (*found["model"]["inputs"], *found["model"]["outputs"])]
    assert [(o["name"], o["dimensions"]) for o in ends] == [("Input3", [1, 1, 28, 28]), ("Plus214_Output_0", [1, 10])]


def test_flags_change_the_model(mnist: Path, printed: Printed) -> None:
    (found,) = printed("nnapi", "dump", mnist, "--nnapi-flags", "nchw")["partitions"]
    assert "TRANSPOSE" not in [o["type"] for o in found["model"]["operations"]]


def test_every_partition_as_text(samples: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    model = samples / "qdq_cnn.onnx"
    assert main(["nnapi", "dump", str(model), "--device", "npu-int8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if line.startswith("partition ")]
    assert len(heads) == len(printed("nnapi", "dump", model)["partitions"]) > 1
    assert heads[0].endswith("on nnapi-reference, sim-npu")
    convolutions = [line for line in lines if " = CONV_2D(" in line]
    assert len(convolutions) == 4
    assert [line for line in lines if ") on nnapi-reference" in line and " = QUANTIZE(" in line]
    assert ") on sim-npu" in convolutions[0]


def test_an_ort_file(mnist: Path, tmp_path: Path, printed: Printed) -> None:
    assert main(["convert", str(mnist), "-o", str(tmp_path / "m.ort"), "--use_nnapi", "-q"]) == 0
    there, here = (printed("nnapi", "dump", path)["partitions"] for path in (tmp_path / "m.ort", mnist))
    operations = [[[o["type"] for o in p["model"]["operations"]] for p in found] for found in (there, here)]
    assert operations[0] == operations[1]


def test_a_model_that_nnapi_takes_nothing_of(mnist: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    stop = "Conv,Gemm,MaxPool,Reshape,Relu,Add,MatMul"
    assert main(["nnapi", "dump", str(mnist), "--stop-ops", stop]) == 0
    assert "NNAPI supports no node" in capsys.readouterr().out
    assert printed("nnapi", "dump", mnist, "--stop-ops", stop)["partitions"] == []


def rows(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["name"], row["flags"]): row for row in found["rows"]}


def test_what_is_compared(mnist: Path, example: Path, printed: Printed) -> None:
    devices = ("--device", example, "--device", "gpu-fp16")
    found = printed("nnapi", "benchmark", mnist, *devices, "--repeat", 2, "--nnapi-flags", "", "--nnapi-flags", "fp16")
    assert (found["compared_with"], found["runs"]) == ("numpy", 2)
    nnapi = ["nnapi-reference", "example", "sim-gpu", "example + sim-gpu"]
    assert list(rows(found)) == [
        ("numpy", ""), ("onnxruntime", ""), *((name, flags) for flags in ("", "fp16") for name in nnapi)
    ]  # fmt: skip
    assert all(row["error"] is None and row["mismatch"] is None for row in found["rows"])


def test_accuracy_and_where_it_ran(mnist: Path, printed: Printed) -> None:
    found = rows(printed("nnapi", "benchmark", mnist, "--repeat", 1, "--nnapi-flags", "", "--nnapi-flags", "fp16"))
    assert found["numpy", ""]["max_abs"] == 0
    assert found["sim-gpu", ""]["operations"] == {"sim-gpu": 8}
    assert found["sim-npu", ""]["operations"] == {"nnapi-reference": 8}  # it takes 8-bit models alone
    assert found["sim-gpu", ""]["scaled"] < 1e-5 < found["sim-gpu", "fp16"]["scaled"] < 1e-2
    assert found["nnapi-reference", "fp16"]["scaled"] < 1e-5
    assert (found["sim-gpu", ""]["nodes"], found["sim-gpu", ""]["nodes_total"]) == (8, 8)


def test_times_of_a_simulated_device(mnist: Path, example: Path, printed: Printed) -> None:
    found = rows(printed("nnapi", "benchmark", mnist, "--repeat", 1, "--device", example, "--nnapi-flags", ""))
    assert found["example", ""]["simulated_ms"] > 5000
    assert found["nnapi-reference", ""]["simulated_ms"] is None


def test_what_fails_is_a_row_of_its_own(
    mnist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed
) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text(BROKEN)
    flags = ("--nnapi-flags", "", "--nnapi-flags", "cpu_disabled")
    found = rows(printed("nnapi", "benchmark", mnist, "--repeat", 1, "--device", broken, *flags))
    assert found["broken", ""]["scaled"] < 1e-5  # the CPU steps in
    assert "broken fails to execute" in found["broken", "cpu_disabled"]["error"]
    assert main(["nnapi", "benchmark", str(mnist), "--repeat", "1", "--device", str(broken), *flags]) == 0
    assert "broken [cpu_disabled] fails: backend nnapi: an execution failed" in capsys.readouterr().out


def test_inputs_of_the_user(mnist: Path, tmp_path: Path, printed: Printed) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, Input3=np.full((1, 1, 28, 28), np.nan, np.float32))
    found = printed("nnapi", "benchmark", mnist, "--repeat", 1, "--inputs", path, "--nnapi-flags", "")
    assert found["inputs"] == {"Input3": {"type": "float32", "shape": [1, 1, 28, 28]}}
    assert {row["max_abs"] for row in found["rows"]} == {0.0}


def test_timing(mnist: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    options = ("--repeat", 1, "--device", "gpu-fp16", "--nnapi-flags", "", "--timing")
    found = rows(printed("nnapi", "benchmark", mnist, *options))
    assert found["numpy", ""]["timing"] is None
    summary = found["sim-gpu", ""]["timing"]
    assert summary["LD"]["PE"] > 0
    assert summary["LC"]["PE"] == 0 < found["nnapi-reference", ""]["timing"]["LC"]["PE"]
    assert min(summary["LA"]["PP"], summary["LR"]["PT"]) > 0
    assert main(["nnapi", "benchmark", str(mnist), *map(str, options)]) == 0
    assert capsys.readouterr().out.count("NNAPI timing summary (self-times, ms wall-clock)") == 2


def test_messages(mnist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nnapi", "dump", str(mnist), "--device", "npu-int8", "--vlog", "compilation"]) == 0
    err = capsys.readouterr().err.splitlines()
    assert "I/ExecutionPlan: Device sim-npu can't do operation CONV_2D:1" in err
    assert main(["nnapi", "dump", str(mnist)]) == 0
    assert capsys.readouterr().err == ""


def test_run_says_where_the_time_goes(mnist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [str(mnist), "--backend", "nnapi,numpy", "--timing"]
    assert main(["run", *options, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["timing"]
    parts = (("LR", "PP"), ("LR", "PC"), ("LD", "PE"), ("LA", "PE"), ("LR", "PT"))
    assert min(summary[layer][phase] for layer, phase in parts) > 0
    assert main(["run", *options, "--vlog", "compilation"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("NNAPI timing summary") == 1
    assert "I/ExecutionPlan: SIMPLE for sim-any" in shown.err.splitlines()


def test_a_run_writes_its_trace(
    mnist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed
) -> None:
    path = tmp_path / "trace.txt"
    command = ["run", str(mnist), "--backend", "nnapi,numpy", "--systrace", str(path), "--repeat", "3"]
    assert main(command) == 0
    assert "NNAPI timing summary" not in capsys.readouterr().out
    (found,) = printed("nnapi", "trace", path)["runs"]
    assert found["executions"] == path.read_text().count("]ANeuralNetworksExecution_compute\n") >= 4
    assert found["unfinished"] == 0
    assert min(found["times"][layer][phase] for layer, phase in (("LR", "PP"), ("LD", "PE"), ("LR", "PT"))) > 0
    assert main(["nnapi", "trace", str(path), "--per-execution"]) == 0
    assert "Percentage" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--timing"], ["--systrace", "trace.txt"], ["--vlog", "all"]])
def test_options_of_a_backend_that_does_not_run(
    mnist: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(mnist), *option]) == 2
    assert "--backend nnapi" in capsys.readouterr().err


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))


@pytest.mark.skipif(os.name != "posix", reason="a name that Windows does not allow")
def test_the_page(mnist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "a<script>b.onnx"
    shutil.copy(mnist, model)
    target = tmp_path / "page.html"
    options = ("--repeat", "1", "--device", "gpu-fp16", "--nnapi-flags", "", "--timing", "--html", str(target))
    assert main(["nnapi", "benchmark", str(model), *options]) == 0
    text = target.read_text("utf-8")
    page = Page(text)
    assert "a&lt;script&gt;b.onnx" in text
    assert not {tag for tag, _ in page.tags} & {"link", "img", "iframe"}
    assert not [a for _, attributes in page.tags for a in attributes if a in ("href", "src")]
    bars = [a["class"] for tag, a in page.tags if tag == "rect"]
    assert bars == ["plain", "plain", "plain", "good", "pale", *["poor"] * 4]
    assert text.count("NNAPI timing summary") == 2
    assert "--device gpu-fp16" in text
    assert "--repeat 1, --timing" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["dump", "--nnapi-flags", "fast"], 2, "there is no NNAPI flag 'fast'"),
        (["benchmark", "--device", "nothing"], 2, "cannot be read"),
        (["benchmark", "--device", "gpu-fp16", "--device", "gpu-fp16"], 2, "there is a device 'sim-gpu' already"),
        (["benchmark", "--backend", "nothing"], 2, "there is no backend 'nothing'"),
        (["benchmark", "--vlog", "everything"], 2, "there is no flag 'everything'"),
        (["dump", "--level", "aware", "--fix-dim", "N"], 2, "N"),
    ],
)
def test_what_is_refused(
    mnist: Path, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nnapi", arguments[0], str(mnist), *arguments[1:]]) == code
    assert said in capsys.readouterr().err


TRACE = """\
       app-100   (  100) [001] ...1 1.000000: tracing_mark_write: B|100|[NN_LA_PO]digits
       app-100   (  100) [001] ...1 1.001000: tracing_mark_write: B|100|[NN_LR_PE]ANeuralNetworksExecution_compute
       app-100   (  100) [001] ...1 1.002000: tracing_mark_write: B|100|HIDL::IPreparedModel::executeSynchronously::client
  npu@1.3-s-200  (  200) [002] ...1 1.003000: tracing_mark_write: B|200|HIDL::IDevice::getType::server
  npu@1.3-s-200  (  200) [002] ...1 1.003500: tracing_mark_write: E|200
  npu@1.3-s-200  (  200) [002] ...1 1.004000: tracing_mark_write: B|200|HIDL::IPreparedModel::executeSynchronously::server
  npu@1.3-s-200  (  200) [002] ...1 1.006000: tracing_mark_write: E|200
       app-100   (  100) [001] ...1 1.007000: tracing_mark_write: E|100
       app-100   (  100) [001] ...1 1.009000: tracing_mark_write: E|100
       app-100   (  100) [001] ...1 1.011000: tracing_mark_write: E|100
       app-100   (  100) [001] ...1 1.012000: tracing_mark_write: B|100|[NN_LR_PT]ANeuralNetworksModel_free
CPU:2 [LOST 3 EVENTS]
"""


def cells(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line[:1].isupper()}


def test_a_trace_of_a_phone(tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(TRACE)
    assert main(["nnapi", "trace", str(path)]) == 0
    text = capsys.readouterr().out
    assert "events were lost, at least 3" in text
    assert "digits: one execution" in text
    assert "left out: 1 mark that does not end within" in text
    assert cells(text)["Runtime"] == ["-", "-", "-", "-", "3.00", "-", "3.00", "-", "3.00"]
    assert cells(text)["IPC"] == ["-", "-", "-", "-", "3.00", "-", "3.00", "-", "3.00"]
    assert cells(text)["Driver"] == ["0.50", "-", "-", "n/a", "n/a", "n/a", "2.00", "-", "2.50"]
    assert main(["nnapi", "trace", str(path), "--total-times", "--per-execution", "--print-detail"]) == 0
    text = capsys.readouterr().out
    assert cells(text)["Runtime"] == ["-", "8.00", "-", "8.00", "100.00"]
    assert cells(text)["Total"] == ["-*", "8.00*", "-*", "8.00", "100.00"]
    assert "        1.004000        2.000 ms  LD_PE IPreparedModel::executeSynchronously::server" in text
    document = printed("nnapi", "trace", path)
    assert document["runs"][0]["times"]["LR"]["PE"] == pytest.approx(8)
    assert document["runs"][0]["marks"] is None


def test_a_file_that_is_no_trace(mnist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nnapi", "trace", str(mnist)]) == 2
    assert "the trace has no marks of NNAPI" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "number", "shown"), [("1", 27, "27"), ("5", 31, "31"), ("6", 1000006, "6"), ("1000008", 1000008, "8")]
)
def test_feature_levels_of_both_forms(
    given: str, number: int, shown: str, mnist: Path, printed: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed("partition", mnist, "--nnapi-feature-level", given)["feature_level"] == number
    assert main(["partition", str(mnist), "--nnapi-feature-level", given]) == 0
    assert f"for NNAPI at feature level {shown}\n" in capsys.readouterr().out
    assert "nnapi" in printed("run", mnist, "--backend", "nnapi", "--nnapi-feature-level", given)["backends"]


@pytest.mark.parametrize("given", ["0", "9", "32", "1000009", "six"])
@pytest.mark.parametrize("verb", ["dump", "benchmark"])
def test_other_feature_levels_are_refused(
    verb: str, given: str, mnist: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nnapi", verb, str(mnist), "--nnapi-feature-level", given]) == 2
    error = capsys.readouterr().err
    assert f"NNAPI has no feature level {given}" in error.replace("'", "")
    assert "1 to 8" in error


def test_a_phone_has_the_lower_of_both_feature_levels(mnist: Path, tmp_path: Path, printed: Printed) -> None:
    phone = tmp_path / "phone.toml"
    for level, expected in [("7", 1000007), ("30", 30), ("1000008", 1000008)]:
        phone.write_text(f"feature_level = {level}")
        found = printed("partition", mnist, "--device", phone, "--nnapi-feature-level", "8")
        assert found["feature_level"] == expected


def test_pictures_of_partitions(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn, graph = tmp_path / "a.svg", tmp_path / "a.dot"
    arguments = ["nnapi", "dump", str(samples / "qdq_cnn.onnx"), "-q", "--device", "npu-int8"]
    assert main([*arguments, "--svg", str(drawn), "--dark", "--dot", str(graph)]) == 0
    assert capsys.readouterr().out == ""
    for text in (drawn.read_text(), graph.read_text()):
        assert "partition 0: " in text
        assert "CONV_2D" in text


def test_a_picture_of_nothing(mnist: Path, tmp_path: Path) -> None:
    drawn, graph = tmp_path / "a.svg", tmp_path / "a.dot"
    stops = "Conv,MaxPool,Relu,Gemm,Reshape,Add,MatMul"
    assert main(["nnapi", "dump", str(mnist), "--stop-ops", stops, "--svg", str(drawn), "--dot", str(graph)]) == 0
    assert "mnist.onnx" in drawn.read_text()
    assert graph.read_text().startswith("digraph {")
