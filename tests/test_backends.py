"""Backends of other packages: installed by pip, found by their entry point, used beside our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

from ortconv.backends.onnxruntime_cpu import ModelFile, OnnxRuntime, without_places
from ortconv.errors import BackendError, UsageError
from ortconv.ir.types import DType
from ortconv.onnxio.load import from_proto
from ortconv.runtime import backend
from ortconv.runtime.session import Session
from tests.conftest import ROOT

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,4] x) => (float[n,4] y, float[n,4] z) <float[4] k = {1, 2, 3, 4}> {
    a = Mul(x, k)  b = Tanh(a)  s = Softmax(x)  c = Add(b, s)
    i = Cast<to=5>(c)  j = Max(i, i)  d = Cast<to=1>(j)  y = Exp(d)  z = Sub(x, k) }"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package, installed without a network."""
    target = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
    ]
    source = ROOT / "tests" / "plugin_backend"
    subprocess.run([*command, "--no-build-isolation", "--target", str(target), str(source)], check=True, timeout=120)
    return target


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(MODEL).SerializeToString())
    return path


def ortconv(*arguments: object, site: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(ROOT)])
    command = [sys.executable, "-m", "ortconv", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})


def test_an_installed_package_adds_a_backend(installed: Path, model: Path, tmp_path: Path) -> None:
    x = np.float32([[0.1, -2, 30, 0.5]])
    np.savez(tmp_path / "x.npz", x=x)
    backends = ["--backend", "double", "--backend", "onnxruntime", "--backend", "numpy"]
    arguments = [
        "run",
        model,
        "--inputs",
        tmp_path / "x.npz",
        *backends,
        "--save",
        tmp_path / "y.npz",
        "--json",
        "--plan",
    ]
    done = ortconv(*arguments, site=installed)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["backends"] == ["onnxruntime", "double", "onnxruntime", "numpy", "onnxruntime", "double"]
    where = {row["node"]: row["backend"] for row in document["plan"]}
    assert where == {
        "Mul 'a'": "double", "Tanh 'b'": "double", "Softmax 's'": "onnxruntime", "Add 'c'": "double",
        "Cast 'i'": "onnxruntime", "Max 'j'": "numpy", "Cast 'd'": "onnxruntime", "Exp 'y'": "double", "Sub 'z'": "double",
    }  # fmt: skip
    softmax = next(row for row in document["plan"] if row["node"] == "Softmax 's'")
    assert softmax["refused"]["double"].startswith("Softmax is none of Add")
    expected = Session(model).run(None, {"x": x})
    got = np.load(tmp_path / "y.npz")
    for name, want in zip("yz", expected, strict=True):
        np.testing.assert_allclose(got[name], want, rtol=1e-5)


@pytest.mark.slow
def test_without_the_package_there_is_no_such_backend(model: Path, tmp_path: Path) -> None:
    done = ortconv("run", model, "--backend", "double", site=tmp_path)
    assert done.returncode == 2
    assert "there is no backend 'double'" in done.stderr


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Neg(x)", None),
        ("y = Det(x)", None),
        ("y = com.example.Own(x)", None),
        ("y = Cast<to=23>(x)", "no kernel for Cast version 25 on tensor(float4e2m1)"),
        ("b = Cast<to=11>(x) y = LpNormalization(b)", None),
        ("b = Cast<to=16>(x) y = Neg(b)", "no kernel for Neg version 13 on tensor(bfloat16)"),
    ],
)
def test_onnxruntime_objects_to_what_it_has_no_kernel_for(body: str, reason: str | None) -> None:
    opsets = '"": 25, "com.microsoft": 1, "com.example": 1'
    text = f"<ir_version: 10, opset_import: [{opsets}]> g (float[2,2] x) => (y) {{ {body} }}"
    graph = from_proto(onnx.parser.parse_model(text)).graph
    assert [r for node in graph for r in OnnxRuntime().objections(node)] == ([reason] if reason else [])


def test_onnxruntime_runs_the_function_of_a_deprecated_operator() -> None:
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[1,2,3] x, float[2] s) => (y) {'
    graph = from_proto(onnx.parser.parse_model(text + " y = GroupNormalization<num_groups=2>(x, s, s) }")).graph
    assert not [reason for node in graph for reason in OnnxRuntime().objections(node)]


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT8E4M3FN, DType.FLOAT8E5M2FNUZ])
def test_onnxruntime_reads_and_returns_types_that_numpy_lacks(dtype: DType) -> None:
    text = f'<ir_version: 9, opset_import: ["": 19]> g ({dtype.name.lower()}[n] x) => ({dtype.name.lower()}[n] y, float[n] z) {{'
    session = Session(from_proto(onnx.parser.parse_model(text + " y = Identity(x) z = Cast<to=1>(x) }")), "onnxruntime")
    for size in (3, 0):
        x = np.arange(size).astype(dtype.numpy)
        y, z = session.run(None, {"x": x})
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(z, np.arange(size))


def test_onnxruntime_returns_one_value_twice(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y, float[2] y) { y = Neg(x) }'
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    for result in Session(path, "onnxruntime").run(None, {"x": np.float32([1, 2])}):
        np.testing.assert_array_equal(result, [-1, -2])


def test_a_node_that_onnxruntime_has_no_kernel_for_falls_to_the_next_backend() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {'
    text += " b = Cast<to=5>(x) c = Max(b, b) d = Cast<to=1>(c) y = Exp(d) }"
    session = Session(from_proto(onnx.parser.parse_model(text)), ["onnxruntime", "numpy"])
    assert [p.backend for p in session.plan] == ["onnxruntime", "numpy", "onnxruntime", "onnxruntime"]
    np.testing.assert_allclose(session.run(None, {"x": np.float32([1, 2])})[0], np.exp([1, 2]), rtol=1e-6)


def sparse_output(element: type[np.generic], folder: Path) -> Path:
    """A file of one sparse constant, [[0, 7, 0], [0, 0, 9]] in these elements."""
    values = onnx.numpy_helper.from_array(np.array([7, 9]).astype(element), "c")
    places = onnx.numpy_helper.from_array(np.array([1, 5]))
    constant = onnx.helper.make_node("Constant", [], ["c"])
    sparse = onnx.helper.make_sparse_tensor(values, places, [2, 3])
    constant.attribute.append(onnx.helper.make_attribute("sparse_value", sparse))
    output = onnx.helper.make_tensor_value_info("c", values.data_type, [2, 3])
    graph = onnx.helper.make_graph([constant], "g", [], [output])
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    path = folder / "sparse.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("element", [np.float32, np.int8])
def test_a_sparse_constant_that_is_an_output_is_an_array(element: type[np.generic], tmp_path: Path) -> None:
    (result,) = ModelFile(sparse_output(element, tmp_path), default=True).run({})
    np.testing.assert_array_equal(result, np.array([[0, 7, 0], [0, 0, 9]], element), strict=True)


def test_a_sparse_output_that_onnxruntime_cannot_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"sparse_tensor\(bool\), which its Python API cannot read"):
        ModelFile(sparse_output(np.bool_, tmp_path), default=True).run({})


@pytest.fixture
def discovered() -> Iterator[Callable[..., dict[str, str]]]:
    """What is found where these entry points are installed, as (name, value)."""

    def find(*installed: tuple[str, str]) -> dict[str, str]:
        points = [EntryPoint(name, value, backend.GROUP) for name, value in installed]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("importlib.metadata.entry_points", lambda group: points)
            backend.discover.cache_clear()
            return backend.discover()

    yield find
    backend.discover.cache_clear()


def test_built_in_backends_are_entry_points(discovered: Callable[..., dict[str, str]]) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"][backend.GROUP]
    assert declared == backend.BUILT_IN
    assert discovered() == discovered(*declared.items()) == declared
    assert discovered(("mine", "a.b:C")) == {**declared, "mine": "a.b:C"}


def test_no_package_takes_the_name_of_another_backend(discovered: Callable[..., dict[str, str]]) -> None:
    for others in ([("numpy", "a.b:C")], [("mine", "a.b:C"), ("mine", "a.b:D")]):
        with pytest.raises(UsageError, match="two packages offer a backend named"):
            discovered(*others)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "FAIL : Exception during initialization: /onnxruntime_src/core/element_wise_ops.h:256 onnxruntime::Div<T>::Div(const "
            "onnxruntime::OpKernelInfo&) [with T = int] b_data[i] != T{0} was false. Integer division by zero",
            "FAIL : Exception during initialization: b_data[i] != T{0} was false. Integer division by zero",
        ),
        ("1 : /a/b.cc:7 void X::operator()(int (*)(long)) const x was false.", "1 : x was false."),
        ("at /a/b.cc:7 no function", "at /a/b.cc:7 no function"),
        ("at /a/b.cc:7 f(never closed", "at /a/b.cc:7 f(never closed"),
        ("Load model from /tmp/m.onnx failed: (none)", "Load model from /tmp/m.onnx failed: (none)"),
    ],
)
def test_places_in_sources_are_left_out_of_messages(message: str, shown: str) -> None:
    assert without_places(message) == shown


def test_a_locale_that_the_system_lacks_is_no_fault_of_the_model() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (string[2] x) => (string[2] y) {
        y = StringNormalizer<case_change_action = "LOWER", locale = "xx_XX.none">(x) }"""
    )
    with pytest.raises(BackendError) as caught:
        Session(from_proto(model), "onnxruntime")
    assert "this system lacks the locale" in str(caught.value.hint)
