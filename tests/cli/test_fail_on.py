"""--fail-on of the verbs: which metrics each one has, and what a condition that holds does."""

from __future__ import annotations

from pathlib import Path

import pytest

import ortconv
from ortconv.cli import main
from ortconv.compare import comparison
from ortconv.gates import metrics_of
from ortconv.partition import Target
from ortconv.report import partition


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("inspect mnist.onnx --fail-on nodes>100,size<1", 0, ""),
        ("inspect mnist.onnx --fail-on size>1kB", 5, "mnist.onnx: 1 of 1 conditions of --fail-on hold: size is"),
        ("inspect mnist.onnx --fail-on sizes>1kB", 2, "knows no metric 'sizes'"),
        ("run mnist.onnx --fail-on latency>100s,load>100s,p90>100s,memory>1TB", 0, ""),
        ("run mnist.onnx --repeat 3 --fail-on p90>0us --fail-on latency>100s", 5, "1 of 2 conditions of --fail-on hold: p90 is"),
        ("run mnist.onnx --fail-on latency>1", 2, "such as latency>20ms"),
        ("run . --fail-on latency>1", 2, "such as latency>20ms"),
        pytest.param(
            "tune mnist.onnx --only level=basic --only threads=1 --fail-on size>100B,latency>100x", 5, "1 of 2 conditions",
            marks=pytest.mark.slow,
        ),
        ("tune mnist.onnx --fail-on nodes>3", 2, "tune has no metric 'nodes'"),
        ("convert mnist.onnx -o x --fail-on size>1.5x,nodes>+0,onnxruntime>1.17,scaled>1", 0, ""),
        ("convert mnist.onnx -o x --fail-on size<2x", 5, "in the baseline"),
        ("convert mnist.onnx -o x --fail-on latency>1x", 2, "convert has no metric 'latency'"),
        ("convert mnist.onnx -o x --fail-on partitions>1", 2, "partitions is not known"),
        ("convert mnist.onnx -o x --use-nnapi --fail-on partitions>0", 5, "partitions is 1 (partitions>0)"),
        pytest.param("convert . -o x --fail-on nodes>+0 --jobs 1", 0, "", marks=pytest.mark.slow),
        pytest.param(
            "convert . -o x --fail-on nodes<2x --jobs 1", 7, "1 of 1 models could not be converted",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_verbs(
    line: str,
    code: int,
    message: str,
    samples: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mnist.onnx").write_bytes((samples / "mnist.onnx").read_bytes())
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == code
    assert message in capsys.readouterr().err
    written = {path.name for path in (tmp_path / "x").iterdir() if not path.name.startswith(".")}
    assert bool(written) == (line.startswith("convert") and code == 0)


def test_each_verb_knows_its_metrics(samples: Path, tmp_path: Path) -> None:
    model = samples / "mnist.onnx"
    found = ortconv.analyze(model, Target())
    assert set(partition.metrics(found.partitioning, found.estimate)) == set(metrics_of("partition"))
    assert set(comparison.metrics([])) == set(metrics_of("compare"))
    assert set(ortconv.inspect(model).metrics()) == set(metrics_of("inspect"))
    assert set(ortconv.convert(model, tmp_path, use_nnapi=True).metrics()) == set(metrics_of("convert"))
