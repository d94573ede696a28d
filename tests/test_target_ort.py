"""Conversion for a release of onnxruntime: nothing that it lacks is written, and the oldest release that loads a file is said."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import ortconv
from ortconv.choices import TARGET_ORT
from ortconv.cli import main
from ortconv.errors import UnsupportedError, UsageError
from ortconv.ortformat.check import check
from ortconv.pipeline import Result

CONV_SWISH = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) { c = Conv (x, w) y = HardSwish (c) }"""
QUICK_GELU = '<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] y) { s = Sigmoid (x) y = Mul (x, s) }'
NEW_SET = '<ir_version: 8, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
NEW_KERNEL = '<ir_version: 8, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = Gelu (x) }'
HALF = '<ir_version: 8, opset_import: ["": 13]> g (float16[2] x, float16 l) => (float16[2] y) { y = Clip (x, l) }'

CUBIC = """<ir_version: 7, opset_import: ["": 12]>
    g (float[1,4,4,3] x, float[0] none) => (float[1,8,8,3] y) <float[4] scales = {1, 1, 2, 2}> {
        f = Transpose <perm = [0, 3, 1, 2]> (x)
        r = Resize <mode = "cubic"> (f, none, scales)
        y = Transpose <perm = [0, 2, 3, 1]> (r)
    }"""


def converted(text: str, folder: Path, target: str | None = None, **settings: object) -> Result:
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    return ortconv.convert(folder / "m.onnx", folder / "m.ort", target_ort=target, **settings)


@pytest.mark.parametrize(
    ("text", "target", "operators", "oldest"),
    [
        (CONV_SWISH, "1.30", {"com.microsoft:FusedConv"}, "1.30"),
        (CONV_SWISH, "1.29", {"Conv", "HardSigmoid", "Mul"}, "1.13"),
        (QUICK_GELU, "1.14.0", {"com.microsoft:QuickGelu"}, "1.14"),
        (QUICK_GELU, "1.13", {"Sigmoid", "Mul"}, "1.13"),
        (NEW_SET, None, {"Relu"}, "1.18"),
        (NEW_KERNEL, None, {"Gelu"}, "1.18"),
        (HALF, "1.19", {"Clip"}, "1.19"),
        (HALF, "1.18", {"Clip", "Cast"}, "1.13"),
        (CUBIC, "1.22", {"Resize"}, "1.22"),
        (CUBIC, "1.21", {"Resize", "Transpose"}, "1.13"),
    ],
)
def test_nothing_is_made_that_the_target_lacks(
    text: str, target: str | None, operators: set[str], oldest: str, tmp_path: Path
) -> None:
    result = converted(text, tmp_path, target)
    assert set(result.operators) == operators
    assert result.oldest_onnxruntime.release == oldest
    assert check(tmp_path / "m.ort").oldest_onnxruntime == oldest


def test_a_function_without_a_kernel_in_the_target_is_expanded(tmp_path: Path) -> None:
    result = converted(NEW_KERNEL, tmp_path, "1.17")
    assert "Gelu" not in result.operators
    assert result.oldest_onnxruntime.release == "1.13"


@pytest.mark.parametrize(
    "text", [NEW_SET, '<ir_version: 8, opset_import: ["": 18]> g (int32[2] x) => (int32[2] y) { y = BitwiseNot (x) }']
)
def test_a_source_that_the_target_does_not_run_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"itself needs onnxruntime 1\.1[48]"):
        converted(text, tmp_path, "1.13")


def test_a_function_whose_body_the_target_does_not_run_is_refused(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 19]> g (float16[2] x, float[2] t) => (float[2] y) { y = CastLike (x, t) }'
    )
    with pytest.raises(UnsupportedError, match=r"Cast 'y/Cast': .* itself needs onnxruntime 1\.16"):
        converted(text, tmp_path, "1.15")


def test_a_node_without_any_kernel_is_refused(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 13]> g (double[2,2] x) => (double y) { y = Det (x) }'
    with pytest.raises(UnsupportedError, match=r"no CPU kernel for this operator with tensor\(double\)") as caught:
        converted(text, tmp_path, validate_on="numpy")
    assert caught.value.node == "Det 'y'"
    assert not (tmp_path / "m.ort").exists()
    converted(text, tmp_path, validate=False)
    assert "no kernel" in str(check(tmp_path / "m.ort").findings)


@pytest.mark.parametrize("target", ["1.12", "2.0", "newest", ""])
def test_unknown_releases(target: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not one of the releases"):
        converted(QUICK_GELU, tmp_path, target)


def test_the_command_says_the_oldest_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(onnx.parser.parse_model(CONV_SWISH), tmp_path / "m.onnx")
    assert main(["convert", str(tmp_path / "m.onnx"), "--target-ort", "1.32"]) == 0
    assert "onnxruntime 1.30 and later (com.microsoft:FusedConv" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "m.ort")]) == 0
    assert "loads in onnxruntime 1.30 and later (com.microsoft:FusedConv" in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "m.onnx"), "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["models"]
    release = result["oldest_onnxruntime"]["release"]
    assert tuple(map(int, release.split("."))) <= tuple(map(int, TARGET_ORT.split(".")))
