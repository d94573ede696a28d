"""Operator configs: read, merged and compared, with ONNX Runtime's own tools as judge."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortconv.cli import main
from ortconv.errors import FormatError, UsageError
from ortconv.onnxio.load import from_proto
from ortconv.ortformat.opconfig import ALWAYS, RequiredOperators
from ortconv.ortformat.writer import save
from ortconv.pipeline import convert
from tests.conftest import NAMES, ROOT, SAMPLES

ONE_HOT = """<ir_version: 8, opset_import: ["": 13]>
    g (int32[3] x) => (float[3,4] y) <int64 d = {4}, float[2] v = {0, 1}> { y = OneHot (x, d, v) }"""


def config(*lines: str) -> RequiredOperators:
    return RequiredOperators.parse("\n".join(lines))


def lines(found: RequiredOperators) -> list[str]:
    return found.text().splitlines()[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples and a OneHot as .ort files."""
    made = tmp_path_factory.mktemp("models")
    for name in NAMES:
        convert(SAMPLES / f"{name}.onnx", made / f"{name}.ort", validate=False, write_config=False)
    save(from_proto(onnx.parser.parse_model(ONE_HOT)), made / "one_hot.ort")
    return made


def tool(code: str, *arguments: object) -> str:
    """What a script prints that runs ONNX Runtime's tools."""
    pytest.importorskip("onnxruntime.tools.ort_format_model")
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


CREATE = """import sys, pathlib
from onnxruntime.tools.ort_format_model import create_config_from_models as create
create(sorted(pathlib.Path(sys.argv[1]).rglob("*.ort")), pathlib.Path(sys.argv[2]), sys.argv[3] == "True")"""

PARSE = """import sys, json
from onnxruntime.tools.reduced_build_config_parser import parse_config
for path in sys.argv[1:]:
    ops, filter = parse_config(path, True)
    needed = None if ops is None else {d: {v: sorted(o) for v, o in sorted(vs.items())} for d, vs in sorted(ops.items())}
    print(json.dumps([needed, filter.get_cpp_entries() if filter else None]))"""


def as_upstream_reads(texts: Sequence[str], folder: Path) -> list[object]:
    """For each config the operators and C++ type lists that ONNX Runtime's build takes out of it."""
    paths = [folder / f"{i}.config" for i, _ in enumerate(texts)]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [json.loads(line) for line in tool(PARSE, *paths).splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("types", [False, True])
def test_configs_of_upstream_come_back_as_they_were(types: bool, folder: Path, tmp_path: Path) -> None:
    written = tmp_path / "theirs.config"
    tool(CREATE, folder, written, types)
    text = written.read_text()
    assert RequiredOperators.parse(text).text() == text
    assert main(["ops", "from", str(folder), "-o", str(tmp_path / "ours.config"), *["--types"] * types]) == 0
    assert (tmp_path / "ours.config").read_text() == text


@pytest.mark.slow
def test_the_config_of_upstreams_converter_comes_back(tmp_path: Path) -> None:
    for name in ("mnist", "qdq_cnn"):
        (tmp_path / f"{name}.onnx").write_bytes((SAMPLES / f"{name}.onnx").read_bytes())
    command = [sys.executable, "-W", "ignore", "-m", "onnxruntime.tools.convert_onnx_models_to_ort", str(tmp_path)]
    subprocess.run([*command, "--enable_type_reduction"], check=True, capture_output=True)
    found = sorted(tmp_path.glob("*.config"))
    assert len(found) == 2
    for path in found:
        text = path.read_text()
        assert RequiredOperators.parse(text).text() == text
        assert '"inputs"' in text
    runtime = next(path for path in found if "with_runtime_opt" in path.name)
    models = [str(p) for p in sorted(tmp_path.glob("*.with_runtime_opt.ort"))]
    assert models
    assert main(["ops", "lint", str(runtime), *(a for m in models for a in ("--model", m))]) == 0


@pytest.mark.slow
def test_merged_configs_ask_for_what_both_ask_for(folder: Path, tmp_path: Path) -> None:
    parts = []
    for name in ("qdq_cnn", "bert_tiny", "one_hot"):
        parts.append(tmp_path / f"{name}.config")
        assert main(["ops", "from", str(folder / f"{name}.ort"), "--types", "-o", str(parts[-1])]) == 0
    merged, whole = tmp_path / "merged.config", tmp_path / "whole.config"
    assert main(["ops", "merge", *map(str, parts), "-o", str(merged)]) == 0
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    for part in parts:
        (chosen / f"{part.stem}.ort").write_bytes((folder / f"{part.stem}.ort").read_bytes())
    tool(CREATE, chosen, whole, True)
    body = [line for line in merged.read_text().splitlines() if not line.startswith("#")]
    assert body == [line for line in whole.read_text().splitlines() if not line.startswith("#")]
    one, other = as_upstream_reads([merged.read_text(), whole.read_text()], tmp_path)
    assert one == other
    assert main(["ops", "lint", str(merged), "--model", str(folder / "qdq_cnn.ort")]) == 0


# ---------------------------------------------------------------------- reading

READ = {
    "several versions": (["ai.onnx;11,13;Relu,Add"], ["ai.onnx;11;Add,Relu", "ai.onnx;13;Add,Relu"]),
    "the domain may be empty": ([";13;Relu"], ["ai.onnx;13;Relu"]),
    "blanks": (["  ai.onnx ; 13 ; Relu , Add  ", "", "# a note"], ["ai.onnx;13;Add,Relu"]),
    "types": (
        ['ai.onnx;9;Cast{"inputs": {"0": ["float", "bool"]}, "outputs": {"0": ["bool"]}},Relu,Where{"inputs": {"1": ["bool"]}}'],
        ['ai.onnx;9;Cast{"inputs": {"0": ["bool", "float"]}, "outputs": {"0": ["bool"]}},Relu,Where{"inputs": {"1": ["bool"]}}'],
    ),
    "custom types": (
        ['ai.onnx;11;OneHot{"custom": [["float", "int64_t", "int64_t"], ["bool", "float", "int32_t"]]}'],
        ['ai.onnx;11;OneHot{"custom": [["bool", "float", "int32_t"], ["float", "int64_t", "int64_t"]]}'],
    ),
    "the last entry of an operator counts": (
        ['ai.onnx;6;Relu{"inputs": {"0": ["double"]}}', 'ai.onnx;14;Relu{"inputs": {"0": ["float"]}}'],
        ['ai.onnx;6;Relu{"inputs": {"0": ["float"]}}', 'ai.onnx;14;Relu{"inputs": {"0": ["float"]}}'],
    ),
    "global types": (["!globally_allowed_types;int64_t, float", "ai.onnx;13;Relu"],
                     ["!globally_allowed_types;float,int64_t", "ai.onnx;13;Relu"]),
    "everything": (["!no_ops_specified_means_all_ops_are_required"], ["!no_ops_specified_means_all_ops_are_required"]),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_reading(name: str) -> None:
    given, expected = READ[name]
    assert lines(config(*given)) == expected


@pytest.mark.slow
def test_upstream_reads_the_same(tmp_path: Path) -> None:
    texts = [
        "\n".join(text) + "\n" for name, pair in READ.items() if name != "the domain may be empty" for text in pair
    ]
    found = as_upstream_reads(texts, tmp_path)
    assert len(found) == 2 * (len(READ) - 1)
    assert found[::2] == found[1::2]


WRONG = {
    "ai.onnx;13": "line 1: 1 semicolons",
    "ai.onnx;x;Relu": "line 1: invalid literal",
    'ai.onnx;13;Relu{"inputs": {"0": ["float"]}': "line 1: Expecting",
    'ai.onnx;13;Relu{"inputs": {"0": ["float"]}}Add': "line 1: 'Add' stands where a comma should",
    'ai.onnx;13;Relu{"input": {"0": ["float"]}}': "line 1: 'input' is not one of",
    "!globally_allowed_types;float32": "line 1: float32 is not a type",
    "!globally_allowed_types;float\n!globally_allowed_types;bool": "line 2: !globally_allowed_types stands twice",
}


@pytest.mark.parametrize("text", WRONG)
def test_lines_that_are_no_config(text: str) -> None:
    with pytest.raises(FormatError, match=WRONG[text]):
        RequiredOperators.parse(text)


# ---------------------------------------------------------------------- merging

FLOAT, BOTH, DOUBLE = (f'{{"inputs": {{"0": [{t}]}}}}' for t in ('"float"', '"double", "float"', '"double"'))
LIMIT, ALL = "!globally_allowed_types;{}", "!no_ops_specified_means_all_ops_are_required"
MERGED = {
    "operators and versions": (["ai.onnx;13;Relu"], ["ai.onnx;14;Relu", "com.microsoft;1;Gelu"],
                               ["ai.onnx;13;Relu", "ai.onnx;14;Relu", "com.microsoft;1;Gelu"]),
    "types are united": ([f"ai.onnx;13;Relu{FLOAT}"], [f"ai.onnx;14;Relu{DOUBLE}"],
                          [f"ai.onnx;13;Relu{BOTH}", f"ai.onnx;14;Relu{BOTH}"]),
    "no entry stands for all types": ([f"ai.onnx;13;Relu{FLOAT}"], ["ai.onnx;13;Relu"], ["ai.onnx;13;Relu"]),
    "an entry of one config alone stays": ([f"ai.onnx;13;Relu{FLOAT}"], ["ai.onnx;13;Neg"], [f"ai.onnx;13;Neg,Relu{FLOAT}"]),
    "limits are united": ([LIMIT.format("float"), "ai.onnx;13;Relu"], [LIMIT.format("bool"), "ai.onnx;13;Relu"],
                          [LIMIT.format("bool,float"), "ai.onnx;13;Relu"]),
    "a limit of one config alone is none": ([LIMIT.format("float"), "ai.onnx;13;Relu"], ["ai.onnx;13;Neg"],
                                          ["ai.onnx;13;Neg,Relu"]),
    "all operators and some are all": ([ALL], [f"ai.onnx;13;Relu{FLOAT}"], [ALL]),
    "that flag with operators asks for those": ([ALL, "ai.onnx;13;Relu"], ["ai.onnx;13;Neg"], [ALL, "ai.onnx;13;Neg,Relu"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_merging(name: str) -> None:
    first, second, expected = MERGED[name]
    for a, b in ((first, second), (second, first)):
        merged = config(*a)
        merged.merge(config(*b))
        assert lines(merged) == expected


def test_a_limit_and_entries_cannot_be_merged() -> None:
    with pytest.raises(UsageError, match="limits types for all operators"):
        config(LIMIT.format("float")).merge(config(f"ai.onnx;13;Relu{FLOAT}"))


def test_labels_of_both_are_kept() -> None:
    merged = config("# Generated from model/s:", "# - /m/b.ort")
    merged.merge(config("# - /m/a.ort", "# - /m/b.ort"))
    assert merged.text() == "# Generated from model/s:\n# - /m/a.ort\n# - /m/b.ort\n"


def test_a_label_is_on_one_line() -> None:
    text = RequiredOperators().text(["/m/a\nb\x85.ort"])
    assert text == "# Generated from model/s:\n# - /m/a\\nb\\x85.ort\n"
    assert RequiredOperators.parse(text).labels == ["/m/a\\nb\\x85.ort"]


# ---------------------------------------------------------------------- missing


def needed(text: str) -> RequiredOperators:
    found = RequiredOperators(types=True)
    found.add(
        from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 13, "com.microsoft": 1]> {text}'))
    )
    return found


CAST = "g (int32[2] x) => (float[2] y) { a = Cast <to = 1> (x) y = Relu (a) }"
NEG = "g (int64[2] x) => (int64[2] y) { y = Neg (x) }"
HOT = "g (int32[3] x) => (float[3,4] y) <int64 d = {4}, float[2] v = {0, 1}> { y = OneHot (x, d, v) }"
MISSING = {
    "nothing": (CAST, ["ai.onnx;13;Cast,Relu"], []),
    "a kernel": (CAST, ["ai.onnx;13;Cast"], ["ai.onnx;13;Relu: the kernel is not listed"]),
    "a version of one": (CAST, ["ai.onnx;13;Cast", "ai.onnx;14;Relu"],
                         ["ai.onnx;13;Relu: the kernel is not listed, but that of 14"]),
    "versions of an operator set": ("g (float[2] x) => (float[2] y) { y = Elu (x) }", ["ai.onnx;13;Elu"], []),
    "a version before the kernel": ("g (float[2] x) => (float[2] y) { y = Elu (x) }", ["ai.onnx;5;Elu"],
                                    ["ai.onnx;6;Elu: the kernel is not listed, but that of 1"]),
    "types": (CAST, ['ai.onnx;13;Cast{"inputs": {"0": ["bool"]}, "outputs": {"0": ["float"]}}', f"ai.onnx;13;Relu{DOUBLE}"],
              ["ai.onnx;13;Cast: int32_t of input 0 is not listed, but bool",
               "ai.onnx;13;Relu: float of input 0 is not listed, but double"]),
    "types of a slot": (CAST, ['ai.onnx;13;Cast{"inputs": {"0": ["int32_t"]}},Relu'],
                        ["ai.onnx;13;Cast: float of output 0 is not listed, but no type"]),
    "types that a build always has": (NEG, [f"ai.onnx;13;Neg{FLOAT}"], []),
    "types of all operators": (CAST, [LIMIT.format("float"), "ai.onnx;13;Cast,Relu"],
                               ["ai.onnx;13;Cast: int32_t of input 0 is not listed, but float"]),
    "triples": (HOT, ['ai.onnx;11;OneHot{"custom": [["int64_t", "float", "int64_t"]]}'],
                ["ai.onnx;11;OneHot: int32_t,float,int64_t for input, output and depth is not listed, but int64_t,float,int64_t"]),
    "everything is there": (CAST, [ALL], []),
    "everything of some types": (CAST, [ALL, LIMIT.format("int32_t,float")], []),
}  # fmt: skip


def test_types_that_the_scripts_of_onnxruntime_do_not_know() -> None:
    found = RequiredOperators(types=True)
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (uint4[2] y) { y = Cast <to = 21> (x) }'
    found.add(from_proto(onnx.parser.parse_model(text)))
    assert 'Cast{"inputs": {"0": ["float"]}, "outputs": {"0": ["UInt4x2"]}}' in found.text()


@pytest.mark.parametrize("name", MISSING)
def test_missing(name: str) -> None:
    model, given, expected = MISSING[name]
    assert list(map(str, config(*given).missing(needed(model)))) == expected


@pytest.mark.slow
def test_types_that_a_build_always_has_are_upstreams() -> None:
    code = """import json
from onnxruntime.tools.ort_format_model.operator_type_usage_processors import _create_operator_type_usage_processors as make
found = {k: v._required_input_types for k, v in make().items() if getattr(v, "_required_input_types", None)}
print(json.dumps({k: {i: sorted(t) for i, t in v.items()} for k, v in found.items()}))"""
    theirs = json.loads(tool(code))
    assert theirs == {f"{domain}:{op}": {"0": sorted(types)} for (domain, op), types in ALWAYS.items()}


# ---------------------------------------------------------------------- the command


@pytest.fixture
def two(tmp_path: Path) -> Path:
    (tmp_path / "a.config").write_text("ai.onnx;13;Relu\n")
    (tmp_path / "b.config").write_text("ai.onnx;13;Neg\n")
    return tmp_path


def test_merge_prints_or_writes(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ops", "merge", str(two / "a.config"), str(two / "b.config")]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed == "# Generated from model/s:\nai.onnx;13;Neg,Relu\n"
    assert main([*arguments, "-o", str(two / "a.config")]) == 0
    assert (two / "a.config").read_text() == printed


def test_lint_ends_with_5(two: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ops", "lint", str(two / "a.config"), "--model", str(folder / "mnist.ort")]
    assert main([*arguments, "--json"]) == 5
    found = json.loads(capsys.readouterr().out)["missing"]
    assert {m["op"] for m in found} >= {"Gemm", "MaxPool"}
    assert main(arguments) == 5
    assert "Gemm: the kernel is not listed" in capsys.readouterr().out


def test_what_the_command_refuses(two: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (two / "bad.config").write_bytes(b"ai.onnx;13")
    (two / "binary.config").write_bytes(np.arange(128, 256, dtype=np.uint8).tobytes())
    for code, arguments in (
        (2, ["ops", "from", str(two)]),
        (2, ["ops", "lint", str(two / "a.config"), "--model", str(SAMPLES / "mnist.onnx")]),
        (2, ["ops", "lint", str(two / "a.config")]),
        (3, ["ops", "merge", str(two / "a.config"), str(two / "bad.config")]),
        (3, ["ops", "merge", str(two / "binary.config")]),
    ):
        assert main(arguments) == code
    assert "bad.config: line 1" in capsys.readouterr().err
