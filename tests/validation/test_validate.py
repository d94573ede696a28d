"""What validation proves, on which engines and inputs, and what it reports if it proves nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import calls
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import ortconv
from ortconv import cli
from ortconv.compare.gap import gap
from ortconv.errors import BackendError, MismatchError, UnsupportedError, UsageError
from ortconv.inputs.budget import Budget
from ortconv.inputs.feeds import KINDS, free_problem, make
from ortconv.ir.tensor import Tensor
from ortconv.models import load
from ortconv.ortformat.writer import write
from ortconv.runtime.session import Session
from ortconv.validation import source_runs
from ortconv.validation.reference import Reference
from ortconv.validation.source_runs import ValidationSettings
from ortconv.validation.validate import validate
from tests.batches import slow_except
from tests.text_models import save, save_nodes


@pytest.mark.parametrize(
    ("choice", "names"), [("numpy", {"numpy"}), ("onnxruntime", {"onnxruntime"}), ("both", {"numpy", "onnxruntime"})]
)
def test_engines(choice: str, names: set[str], samples: Path, tmp_path: Path) -> None:
    found = ortconv.convert(samples / "mnist.onnx", tmp_path / "m.ort", validate_on=choice).validation
    assert found is not None
    assert {e.name for e in found.engines if e.skipped is None} == names
    assert {e.name for e in found.engines if e.loads} == names
    assert set(found.backend.split(" and ")) == names
    assert found.engines[-1].own is None


@pytest.mark.slow
def test_onnxruntimes_own_result_is_computed_where_a_crash_is_survived(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = samples / "mnist.onnx"
    model, settings = load(source), ValidationSettings()
    plain = Reference(model, source, settings)
    plain.wait()
    assert plain.own_scaled() is None
    apart = plain.own_outputs(0)
    monkeypatch.setattr(source_runs, "is_watched", lambda: True)
    watched = Reference(model, source, settings)
    watched.wait()
    here = watched.own_outputs(0)
    assert watched.own_scaled() is not None
    assert apart is not None
    assert here is not None
    np.testing.assert_array_equal(apart[0], here[0])


@pytest.mark.slow
def test_a_crash_of_onnxruntimes_optimizations_costs_their_result_alone(samples: Path) -> None:
    source = samples / "mnist.onnx"
    expected = Reference(load(source), source, ValidationSettings())
    expected.wait()
    expected.open_file = calls.segfault
    assert expected.own_outputs(0) is None
    assert expected.own_outputs(0) is None


def test_the_summary_says_what_was_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save_nodes(tmp_path / "m.onnx", "y = Relu(x)")
    assert cli.main(["convert", str(source)]) == 0
    out = capsys.readouterr().out
    assert "loads in onnxruntime 1." in out
    assert "numbers equal on numpy and onnxruntime" in out


def test_what_onnxruntime_refuses_is_not_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ortconv.ortformat import writer

    real = writer.write

    def without_kernel(model: ortconv.ir.model.Model, path: Path) -> None:
        node = next(iter(model.graph))
        node.op, node.domain = "Celu", "com.microsoft.nchwc"
        real(model, path)

    monkeypatch.setattr(writer, "write", without_kernel)
    source, target = save_nodes(tmp_path / "m.onnx", "y = Celu(x)"), tmp_path / "m.ort"
    assert cli.main(["convert", str(source), "-o", str(target)]) == 3
    error = capsys.readouterr().err
    assert "does not load the result" in error
    assert "Celu" in error
    assert "--optimization-level" in error
    assert not target.exists()
    result = ortconv.convert(source, target, allow_unchecked=True)
    assert result.validation is not None
    assert "does not load the result" in (result.validation.skipped or "")


def test_a_source_that_onnxruntime_refuses_is_said_to_be_so(tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", "y = Det(x)", "double[2,2] x")
    with pytest.raises(UnsupportedError, match=r"onnxruntime 1\.\S+ does not load the source: .*Det"):
        ortconv.convert(source, tmp_path / "m.ort")


def test_what_is_not_checked_is_an_error_unless_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save_nodes(tmp_path / "m.onnx", "y = mine.Mine(x)", outputs="float[batch,4] y", mine=1)
    target = tmp_path / "m.ort"
    assert cli.main(["convert", str(source), "-q"]) == 3
    error = capsys.readouterr().err
    assert "if a library has 'mine:Mine', give it with --custom-op-library" in error
    assert not target.exists()
    assert cli.main(["convert", str(source), "-q", "--allow-unchecked"]) == 0
    assert "not checked" in capsys.readouterr().err
    assert cli.main(["convert", str(source), "--json", "--allow-unchecked"]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["validation"]["skipped"]
    assert cli.main(["convert", str(source), "-q", "--no-validate"]) == 0
    assert not capsys.readouterr().err
    assert target.exists()


def test_sets_of_inputs(samples: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sets = [{"Input3": rng.standard_normal((1, 1, 28, 28)).astype(np.float32)} for _ in range(3)]
    found = ortconv.convert(samples / "mnist.onnx", tmp_path / "m.ort", validate_with=sets).validation
    assert found is not None
    assert len(found.inputs) == 3
    paths = []
    for i, arrays in enumerate(sets[:2]):
        paths += ["--validate-with", str(tmp_path / f"{i}.npz")]
        np.savez(paths[-1], **arrays)
    assert cli.main(["convert", str(samples / "mnist.onnx"), "-o", str(tmp_path / "n.ort"), "-q", *paths]) == 0


def test_a_fault_that_only_one_set_shows_is_found(tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", "y = Relu(x)")
    model = load(source)
    next(iter(model.graph)).op = "Identity"
    write(model, tmp_path / "m.ort")
    sets = tuple({"x": np.full((1, 4), value, np.float32)} for value in (1, 2, -1))
    for given, wrong in ((sets[:2], False), (sets, True)):
        expected = Reference(load(source), source, ValidationSettings(given=given))
        if wrong:
            with pytest.raises(MismatchError, match="given inputs 3"):
                validate(expected, tmp_path / "m.ort")
        else:
            assert validate(expected, tmp_path / "m.ort").skipped is None


def test_a_batch_of_two_shows_a_shape_that_is_fixed_to_one(tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", "s = Constant<value_ints = [0, 2, 2]>() y = Reshape(x, s)")
    model = load(source)
    shape = next(iter(model.graph)).inputs[1]
    assert shape is not None
    shape.const = Tensor.of(np.array([1, 2, 2], np.int64))
    write(model, tmp_path / "m.ort")
    expected = Reference(load(source), source, ValidationSettings())
    assert [dict(t.sizes) for t in expected.trials[:2]] == [{"batch": 2}, {"batch": 1}]
    with pytest.raises((UnsupportedError, MismatchError)):
        validate(expected, tmp_path / "m.ort")


def test_elements_beyond_the_usual_ones(tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", "y = Relu(x)", "float[batch,4] x, int64[batch,4] i", "y")
    onnx.save(onnx.load(source), source)
    found = Reference(load(source), source, ValidationSettings(engines=("numpy",)))
    floats = {t.what.split()[0]: t.feeds["x"] for t in found.trials}
    assert set(floats) == {"drawn", "negative", "large", "zeros"}
    assert (floats["negative"] < 0).all()
    assert not floats["zeros"].any()
    assert np.abs(floats["large"]).max() > 100


@pytest.mark.parametrize(
    "body",
    [
        "y = RandomNormalLike(x)",
        "t = Constant<value = bool {1}>() r = Constant<value = float {0.5}>() y = Dropout(x, r, t)",
    ],
)
def test_random_numbers_are_compared_by_type_and_shape(body: str, tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", f"{body} z = Relu(x)", outputs="y, z")
    found = ortconv.convert(source, tmp_path / "m.ort").validation
    assert found is not None
    assert found.skipped is None
    assert any("random numbers are drawn: y" in note for note in found.notes)


def test_float16_may_be_nearer_to_float32_than_the_source(tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", "a = Cos(x) b = Abs(a) y = Asin(b)", "float16[51,20] x")
    found = ortconv.convert(source, tmp_path / "m.ort").validation
    assert found is not None
    assert found.skipped is None


def test_one_subnormal_is_no_difference_in_float16() -> None:
    from ortconv.compare.tolerance import OutputTolerance, accepts
    from ortconv.ir.types import DType

    zeros = np.zeros(4, np.float16)
    other = np.array([0, 6e-8, 0, 0], np.float16)
    assert accepts(OutputTolerance(1e-3, DType.FLOAT16), gap(zeros, other))
    assert not accepts(OutputTolerance(1e-3, DType.FLOAT16), gap(zeros, other + np.float16(1e-3)))
    assert not accepts(OutputTolerance(1e-3, DType.FLOAT), gap(zeros.astype(np.float32), other.astype(np.float32)))


@pytest.mark.parametrize(("off", "step", "fine"), [(1, 2, True), (2, 2, False), (1, 40, False)])
def test_quantized_outputs_may_be_a_step_off_at_few_places(off: int, step: int, fine: bool) -> None:
    from ortconv.compare.tolerance import OutputTolerance, accepts
    from ortconv.ir.types import DType

    want = np.full(100, 7, np.uint8)
    got = want.copy()
    got[:step] += np.uint8(off)
    tolerance = OutputTolerance(0.05, DType.UINT8, quantized=True, step=1.0)
    assert accepts(tolerance, gap(want, got)) == fine
    assert not accepts(OutputTolerance(1e-6, DType.UINT8), gap(want, got))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_conversion_touches_nothing_but_its_output(samples: Path, tmp_path: Path) -> None:
    home, out, trace = tmp_path / "home", tmp_path / "out", tmp_path / "trace"
    home.mkdir()
    environment = {k: v for k, v in os.environ.items() if k not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")}
    environment |= {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    calls = "trace=network,open,openat,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat"
    command = ["strace", "-f", "-o", str(trace), "-e", calls, sys.executable, "-m", "ortconv", "convert"]
    done = subprocess.run(
        [*command, str(samples / "mnist.onnx"), "-o", f"{out}/"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0
    assert "loads in onnxruntime" in done.stdout
    lines = trace.read_text().splitlines()
    assert not [line for line in lines if "socket(" in line or "connect(" in line]
    changing = [
        line
        for line in lines
        if any(word in line for word in ("O_WRONLY", "O_RDWR", "O_CREAT", "mkdir", "rename", "unlink"))
        and "resumed>" not in line  # the line in which the call began has its path
    ]
    outside = [line for line in changing if str(out) not in line and "/dev/" not in line]
    assert not outside
    assert changing
    assert not list(home.rglob("*"))


def test_telemetry_is_left_on_where_the_user_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortconv.backends.onnxruntime_cpu import runtime

    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    runtime()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    runtime()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"


def test_settings_of_the_onnxruntime_backend(samples: Path) -> None:
    feeds = {"Input3": np.zeros((1, 1, 28, 28), np.float32)}
    plain, default = (
        Session(samples / "mnist.onnx", [name]).run(None, feeds)[0] for name in ("onnxruntime", "onnxruntime:default")
    )
    np.testing.assert_allclose(plain, default, rtol=1e-4, atol=1e-4)
    with pytest.raises((UsageError, BackendError), match="no setting 'fast'"):
        Session(samples / "mnist.onnx", ["onnxruntime:fast"])


def test_a_fault_of_the_source_is_not_told_as_one_of_the_result(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weight = helper.make_tensor("w", TensorProto.DOUBLE, [4, 2], [1.0] * 8)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(ortconv.errors.ModelError):
        ortconv.convert(tmp_path / "m.onnx", tmp_path / "m.ort")


def test_a_batch_that_inner_values_declare_as_one_is_tried_with_two(tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", "a = Relu(x) y = Neg(a)")
    model = onnx.load(source)
    model.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [1, 4]))
    onnx.save(model, source)
    expected = Reference(load(source), source, ValidationSettings(engines=("numpy",)))
    assert {t.sizes["batch"] for t in expected.trials} == {1, 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    "frame",
    [
        "{}",
        "k = Cast<to = 9>(n) y = If(k) <then_branch = p () => (o) {{ o = Sin(x) }}, else_branch = q () => (y) {{ {} }}>",
    ],
)
def test_sizes_are_seen_where_shapes_are_not_inferred(frame: str, tmp_path: Path) -> None:
    """The pads are computed: inference does not know what the convolution reads."""
    body = """s = Shape(x) z = Constant<value_ints = [0]>() p = Mul(s, z) q = Concat<axis = 0>(p, p)
        r = Cast<to = 1>(q) t = Cast<to = 7>(r) a = Pad(x, t) y = Conv(a, w)"""
    head = "int64 n, float[N,C,H,W] x"
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({head}) => (float[A,B,D,E] y) {{ {frame.format(body)} }}'
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((4, 7, 3, 99)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    expected = Reference(load(tmp_path / "m.onnx"), tmp_path / "m.onnx", ValidationSettings(engines=("numpy",)))
    sizes = expected.trials[0].sizes
    assert sizes["C"] == 7
    assert sizes["W"] >= 99


@pytest.mark.parametrize("kind", KINDS)
def test_scalars_are_made_up_as_arrays(kind: str, tmp_path: Path) -> None:
    graph = load(save_nodes(tmp_path / "m.onnx", "y = Cos(x)", "float16 x")).graph
    assert isinstance(make(free_problem(graph, {}, {}), {}, kind=kind)["x"], np.ndarray)


def test_the_made_up_target_of_a_reshape_keeps_the_shape(tmp_path: Path) -> None:
    body = "a = Reshape(x, t) b = Transpose<perm = [2, 0, 1]>(a) y = MatMul(b, c)"
    source = save_nodes(tmp_path / "m.onnx", body, "float[3,4,5] x, int64[3] t, float[5,4,6] c")
    expected = Reference(load(source), source, ValidationSettings(engines=("numpy",)))
    assert len(expected.trials) > 1


OPEN = {
    "NaN as an integer": ("s = Asin(x) l = Cast<to = 7>(s) y = Cast<to = 6>(l)", "float[40] x"),
    "a float beyond the integers": ("e = Exp(x) f = Exp(e) l = Cast<to = 7>(f) y = Cast<to = 6>(l)", "float[40] x"),
    "integers of a value that is computed in float32": (
        "c = Cos(x) r = Relu(c) y = Cast<to = 7>(r)",
        "float16[4096] x",
    ),
    "a float16 that onnxruntime does not round": (
        "p = Exp(x) e = Exp(p) f = Exp(e) c = Concat<axis = 0>(x, f) s = Sin(c) y = Max(s, h)",
        "float16[40] x, float16[80] h",
    ),
}


@pytest.mark.parametrize("name", slow_except(["integers of a value that is computed in float32"], OPEN))
def test_what_a_model_leaves_open_is_no_difference(name: str, tmp_path: Path) -> None:
    body, head = OPEN[name]
    found = ortconv.convert(
        save_nodes(tmp_path / "m.onnx", body, head), tmp_path / "m.ort", optimization_level="extended"
    ).validation
    assert found is not None
    assert found.backend == "numpy and onnxruntime"


@pytest.mark.parametrize(
    ("body", "element", "other"),
    [
        ("s = Sqrt(x) y = Cast<to = 6>(s)", -1.0, 7),
        ("n = Neg(x) r = Reciprocal(n) y = Sigmoid(r)", 0.0, 1),
        (
            """a = Constant<value_ints = [1, 1, 4]>() b = Constant<value_ints = [4]>() s = Sqrt(x) r = Reshape(s, a)
            p = MaxPool<kernel_shape = [1]>(r) y = Reshape(p, b)""",
            -1.0,
            7,
        ),
    ],
    ids=["an integer made of NaN", "the sign of a zero", "the largest of NaN"],
)
def test_only_the_elements_that_are_open_may_differ(body: str, element: float, other: int, tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", body, "float[4] x")
    feeds = {"x": np.array([element, 4, 9, 16], np.float32)}
    expected = Reference(load(source), source, ValidationSettings(engines=("numpy",), given=(feeds,)))
    want = expected.outputs["numpy"][0]
    assert want is not None
    changed = want[0].copy()
    changed[0] = other
    assert expected.judge("numpy", [[changed]], "", "", False).mismatch is None
    changed[1:] += 1
    with pytest.raises(MismatchError):
        expected.judge("numpy", [[changed]], "", "", False)


def test_float16_is_held_to_the_worst_engine_element_by_element(tmp_path: Path) -> None:
    """One float16 that the source makes infinite excuses no other."""
    source = save_nodes(tmp_path / "m.onnx", "e = Exp(x) y = Log(e)", "float16[3] x")
    feeds = {"x": np.array([1, 12, 2], np.float16)}
    expected = Reference(load(source), source, ValidationSettings(engines=("numpy",), given=(feeds,)))
    assert expected.judge("numpy", [[np.array([1, 12, 2], np.float16)]], "", "", False).mismatch is None
    with pytest.raises(MismatchError):
        expected.judge("numpy", [[np.array([1, 12, 3], np.float16)]], "", "", False)


@pytest.mark.slow
def test_a_source_that_runs_only_if_it_is_optimized(tmp_path: Path) -> None:
    """onnxruntime's optimizer removes the Slice, whose bounds must not be scalars."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[4,3] x, float[6] z) => (float[2,3] y)
        <int64 zero = {0}, int64 two = {2}, int64[1] axis = {0}, float[2,3] a>
        { a = Slice(x, zero, two, axis) s = Shape(a) y = Reshape(z, s) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    found = ortconv.convert(tmp_path / "m.onnx", tmp_path / "m.ort", optimization_level="basic").validation
    assert found is not None
    assert [engine.skipped for engine in found.engines] == [None, None]
    with pytest.raises(UnsupportedError, match="runs the source, but not the result"):
        ortconv.convert(tmp_path / "m.onnx", tmp_path / "n.ort", optimization_level="disable")


STATISTICS = "float[3] s = {1, 2, 3}, float[3] b = {4, 5, 6}, float[3] m = {7, 8, 9}"
TRAINING = "y, mean, var = BatchNormalization<training_mode = 1>(x, s, b, m, v)"


@pytest.mark.parametrize(
    ("graph", "drifts"),
    [
        (f"g (float[N,3] x) => (float[N,3] y, z) <{STATISTICS}, float[3] v = {{2, 3, 4}}> {{ {TRAINING} z = Neg(var) }}", True),
        (f"g (float[N,3] x, float[3] v) => (float[N,3] y, z) <{STATISTICS}> {{ {TRAINING} z = Neg(var) }}", False),
        (f"g (float[N,3] x) => (float[N,3] y, var) <{STATISTICS}, float[3] v = {{2, 3, 4}}> {{ {TRAINING} }}", False),
    ],
    ids=["constants", "inputs", "outputs of their own"],
)  # fmt: skip
def test_statistics_that_onnxruntime_writes_over_constants_or_inputs(graph: str, drifts: bool, tmp_path: Path) -> None:
    source = save(tmp_path / "m.onnx", graph)
    expected = Reference(load(source), source, ValidationSettings(budget=Budget(seconds=200)))
    found = validate(expected, source)
    assert [engine.skipped for engine in found.engines] == [None, None]
    assert found.engines[1].scaled == 0
    assert any("later runs in a session of onnxruntime differ from the first" in note for note in found.notes) == drifts
    assert len(found.notes) == drifts
    assert validate(expected, source).notes == found.notes


@pytest.mark.slow
def test_statistics_that_are_written_over_constants_in_the_result_alone(tmp_path: Path) -> None:
    head = f"g (float[N,3] x) => (y, z) <{STATISTICS}, float[3] v = {{2, 3, 4}}>"
    source = save(tmp_path / "m.onnx", f"{head} {{ {TRAINING.replace('var', 'z')} }}")
    result = save(tmp_path / "n.onnx", f"{head} {{ {TRAINING} z = Abs(var) }}")
    with pytest.raises(MismatchError, match="over constants, and does not with the source"):
        validate(Reference(load(source), source, ValidationSettings()), result)


def test_a_backend_does_not_change_its_inputs(tmp_path: Path) -> None:
    graph = f"g (float[N,3] x, float[3] v) => (y, z) <{STATISTICS}> {{ {TRAINING} z = Neg(var) }}"
    session = Session(save(tmp_path / "m.onnx", graph), ["onnxruntime"])
    feeds = {"x": np.eye(3, dtype=np.float32), "v": np.ones(3, np.float32)}
    first, second = session.run(None, feeds), session.run(None, feeds)
    np.testing.assert_array_equal(feeds["v"], np.ones(3))
    np.testing.assert_array_equal(first[1], second[1])


def test_the_range_of_outputs_comes_from_one_engine(tmp_path: Path) -> None:
    """The other engine runs at the same time, and is ready sooner or later."""
    source = save_nodes(tmp_path / "m.onnx", "y = Identity(x)", "float[3] x")
    feeds = {"x": np.array([1, 2, 4], np.float32)}
    expected = Reference(load(source), source, ValidationSettings(given=(feeds,), error_budget=0.1))
    expected.wait()
    expected.outputs["onnxruntime"] = [[np.array([1, 2, 1000], np.float32)]]
    assert expected.is_within_budget(0, [np.array([1, 2, 4.2], np.float32)], 1.0) == (True, pytest.approx(0.05))
    assert not expected.is_within_budget(0, [np.array([1, 2, 5], np.float32)], 1.0)[0]


@pytest.mark.slow
def test_conditions_that_are_inputs_are_drawn_again(tmp_path: Path) -> None:
    """Behind the If, one branch alone has the rank that the Transpose takes."""
    body = """a = If(c) <then_branch = p () => (u) { u = ReduceMax<keepdims = 0, axes = [0]>(x) },
        else_branch = q () => (v) { v = Relu(x) }> y = Transpose<perm = [1, 0, 2]>(a)"""
    swapped = body.replace("p () => (u) { u = ReduceMax<keepdims = 0, axes = [0]>(x) }", "p () => (u) { u = Relu(x) }")
    swapped = swapped.replace("v = Relu(x)", "v = ReduceMax<keepdims = 0, axes = [0]>(x)")
    for name, text in (("a", body), ("b", swapped)):
        source = save_nodes(tmp_path / f"{name}.onnx", text, "bool c, float[2,3,4] x")
        assert Reference(load(source), source, ValidationSettings(engines=("numpy",))).trials, name


def test_every_case_of_conditions_that_are_inputs_is_tried(tmp_path: Path) -> None:
    """In one of 16 cases alone the rank is the one that the Transpose takes."""
    keeps, reduces = (
        "p{0} () => (u{0}) {{ u{0} = Relu(x{0}) }}",
        "q{0} () => (v{0}) {{ v{0} = ReduceMax<keepdims = 0, axes = [0]>(x{0}) }}",
    )
    branches = [(keeps, reduces) if n % 3 else (reduces, keeps) for n in range(4)]
    steps = [
        f"x{n + 1} = If(c{n}) <then_branch = {a.format(n)}, else_branch = {b.format(n)}>"
        for n, (a, b) in enumerate(branches)
    ]
    body = " ".join(steps) + " y = Transpose<perm = [1, 0, 2]>(x4)"
    source = save_nodes(tmp_path / "m.onnx", body, "bool c0, bool c1, bool c2, bool c3, float[2,3,4] x0")
    assert Reference(load(source), source, ValidationSettings(engines=("numpy",))).trials


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ("a = Reshape(x, t) s = Constant<value_ints = [0, 1, 1, 3]>() y = Reshape(a, s)", "float[3,1] x, int64[3] t"),
        ("a = Reshape(x, t) y = Conv(a, w)", "float[6,8] x, int64[4] t, float[5,2,1,1] w"),
    ],
    ids=["one axis", "factors"],
)
def test_made_up_targets_of_a_reshape_vary_until_the_model_runs(body: str, head: str, tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", body, head)
    assert len(Reference(load(source), source, ValidationSettings(engines=("numpy",))).trials) > 1


@pytest.mark.parametrize(
    "head",
    ["float[1,5,5] x, int64[2] i, int64[2] b", "float[2,24,6] x, int64[2] i, int64[2] b"],
    ids=["flat", "blocks"],
)
def test_the_blocks_of_columns_fill_the_declared_image(head: str, tmp_path: Path) -> None:
    out = "float[1,1,5,5] y" if "[1,5,5]" in head else "float[2,4,4,4] y"
    source = save_nodes(tmp_path / "m.onnx", "y = Col2Im(x, i, b)", head, out)
    model = onnx.load(source)
    model.opset_import[0].version = 18
    onnx.save(model, source)
    found = ortconv.convert(source, tmp_path / "m.ort").validation
    assert found is not None
    assert found.backend == "numpy and onnxruntime"


def test_a_result_may_be_as_far_from_numpy_as_the_source_is(tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", "y = Relu(x)", "float[3] x")
    expected = Reference(load(source), source, ValidationSettings(given=({"x": np.array([1, 2, 3], np.float32)},)))
    expected.wait()
    exact = expected.outputs["numpy"][0]
    assert exact is not None
    expected.outputs["onnxruntime"] = [[exact[0] + np.float32(1e-3)]]
    expected._own = {0: None}
    with expected.clock:
        assert expected.judge("onnxruntime", [[exact[0] - np.float32(0.9e-3)]], "", "", False).mismatch is None
        with pytest.raises(MismatchError):
            expected.judge("onnxruntime", [[exact[0] - np.float32(4e-3)]], "", "", False)
