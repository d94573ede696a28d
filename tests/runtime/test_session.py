"""Sessions: the interface of onnxruntime's InferenceSession, feeds that are wrong, and graphs split between backends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ortconv
from ortconv.errors import BackendError, UnsupportedError, UsageError
from ortconv.executor.plan import Plan
from ortconv.ir.graph import Node
from ortconv.onnxio.load import from_proto
from ortconv.runtime import backend as backends
from ortconv.runtime.backend import Region
from tests import text_models
from tests.conftest import FAST_NAMES


def session(text: str, opset: int = 17, **options: Any) -> ortconv.Session:
    return ortconv.Session(from_proto(text_models.parse(text, opset)), **options)


@pytest.mark.parametrize("suffix", [".onnx", ".ort"])
@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_inputs_and_outputs_are_described_as_onnxruntime_does(sample: Path, suffix: str, tmp_path: Path) -> None:
    path = sample
    if suffix == ".ort":
        path = tmp_path / "m.ort"
        ortconv.convert(sample, path, validate=False)
    ours, theirs = ortconv.Session(path), onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(a.name, a.type) for a in mine] == [(a.name, a.type) for a in other]
    assert [a.shape for a in ours.get_inputs()] == [a.shape for a in theirs.get_inputs()]


@pytest.mark.parametrize("kind", ["seq(float[2])", "optional(float[2])", "optional(seq(int64[n]))"])
def test_types_other_than_tensors_are_named_as_onnxruntime_does(kind: str) -> None:
    model = text_models.parse(f"g ({kind} x) => ({kind} y) {{ y = Identity(x) }}", 18)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ours = ortconv.Session(from_proto(model))
    assert [a.type for a in ours.get_inputs()] == [a.type for a in theirs.get_inputs()]


def test_maps_are_named_as_onnxruntime_does() -> None:
    classes = {"classlabels_int64s": [0, 1], "domain": "ai.onnx.ml"}
    node = onnx.helper.make_node("ZipMap", ["x"], ["y"], **classes)
    row = onnx.helper.make_map_type_proto(7, onnx.helper.make_tensor_type_proto(1, None))
    x = onnx.helper.make_tensor_value_info("x", 1, [3, 2])
    y = onnx.helper.make_value_info("y", onnx.helper.make_sequence_type_proto(row))
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]), opset_imports=imports, ir_version=8)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [a.type for a in ortconv.Session(model).get_outputs()] == [a.type for a in theirs.get_outputs()]


ADD = "g (float[n,2] x, float[2] k) => (float[n,2] y, float[n,2] z) <float[2] k = {1, 2}> { y = Add(x, k) z = Neg(y) }"


def test_outputs_by_name_and_overridable_inputs() -> None:
    s = session(ADD)
    x = np.zeros((1, 2), np.float32)
    assert [a.name for a in s.get_inputs()] == ["x"]
    assert [a.name for a in s.get_overridable_initializers()] == ["k"]
    np.testing.assert_array_equal(s.run(["z"], {"x": x})[0], [[-1, -2]])
    np.testing.assert_array_equal(s.run(["z", "y"], {"x": x, "k": np.float32([5, 6])}), [[[-5, -6]], [[5, 6]]])


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": np.zeros((1, 2), np.float32), "q": 1}, "no input 'q'"),
        ({"x": np.zeros((1, 2))}, r"must be float\[n,2\], got double\[1,2\]"),
        ({"x": np.zeros((1, 3), np.float32)}, r"must be float\[n,2\], got float\[1,3\]"),
        ({"x": np.zeros(2, np.float32)}, r"must be float\[n,2\], got float\[2\]"),
        ({"x": np.zeros((1, 2), "datetime64[s]")}, "does not exist in ONNX"),
    ],
)
def test_wrong_feeds_get_one_clear_message(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        session(ADD).run(None, feeds)


def test_unknown_output_and_backend() -> None:
    with pytest.raises(UsageError, match="no output 'w'"):
        session(ADD).run(["w"], {"x": np.zeros((1, 2), np.float32)})
    with pytest.raises(UsageError, match="no backend 'tpu'"):
        session(ADD, backends=["tpu"])
    with pytest.raises(UsageError, match="3 is not a backend"):
        session(ADD, backends=["numpy", 3])
    assert repr(session(ADD).model).endswith("2 nodes, opset 17>")


def test_another_element_type_has_a_hint() -> None:
    with pytest.raises(UsageError) as caught:
        session(ADD).run(None, {"x": np.zeros((1, 2))})
    assert caught.value.hint == "convert it with .astype('float32')"


@pytest.mark.parametrize(
    "body",
    [
        "y = Identity(x)",
        "y = Reshape(x, s)",
        "y = Transpose(x)",
        "y = Identity(w)",
        "y = Neg(w)",
        "h = Shape(x) y = ConstantOfShape(h)",
    ],
)
def test_outputs_have_memory_of_their_own(body: str) -> None:
    s = session(
        f"g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {{1, 2, 3, 4}}, int64[2] s = {{2, 2}}> {{ {body} }}"
    )
    x = np.ones((2, 2), np.float32)
    first = s.run(None, {"x": x})[0]
    assert not np.shares_memory(first, x)
    first[:] = 99
    assert not (s.run(None, {"x": x})[0] == 99).any()


def test_outputs_in_a_list_have_memory_of_their_own() -> None:
    s = session("g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x, x) }")
    x = np.ones(2, np.float32)
    first, second = s.run(None, {"x": x})[0]
    assert not any(np.shares_memory(a, b) for a, b in ((first, x), (second, x), (first, second)))


def test_a_kernel_that_fails_names_its_node() -> None:
    s = session("g (float[n,2] x) => (float[m] y) <int64[1] i = {7}> { y = Gather(x, i) }")
    with pytest.raises(BackendError, match=r"Gather 'y' failed on input shapes \[\(1, 2\), \(1,\)\]"):
        s.run(None, {"x": np.zeros((1, 2), np.float32)})


class Halves:
    """A backend that takes nothing but Neg, and says how often it ran."""

    name = "halves"

    def __init__(self) -> None:
        self.runs = 0

    def available(self) -> str | None:
        return None

    def objections(self, node: Node) -> Iterator[str]:
        if node.op != "Neg":
            yield f"{node.op} is not Neg"

    def compile(self, region: Region) -> Halves:
        self.region = region
        return self

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        self.runs += 1
        return Plan(self.region.nodes, self.region.inputs, self.region.outputs).run(inputs)


def test_a_graph_is_split_in_order_of_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = Halves()
    real = backends.get_backend
    monkeypatch.setattr(backends, "get_backend", lambda name: halves if name == "halves" else real(name))
    text = """g (float[2] x) => (float[2] y, float[2] a) {
        a = Exp(x) b = Neg(a) c = Neg(b) t = Greater(x, x)  k = ReduceSum<keepdims=0>(c)  l = Greater(k, k)
        d = If(l) <then_branch = p () => (float[2] u) { u = Exp(c) }, else_branch = q () => (float[2] v) { v = Exp(b) }>
        y = Add(d, a) }"""
    s = session(text, backends=["halves", "numpy"])
    assert [(name, [n.op for n in region.nodes]) for name, region in s.regions] == [
        ("numpy", ["Exp", "Greater"]),
        ("halves", ["Neg", "Neg"]),
        ("numpy", ["ReduceSum", "Greater", "If", "Add"]),
    ]
    assert [(p.node.op, p.backend, dict(p.refused)) for p in s.plan[:3]] == [
        ("Exp", "numpy", {"halves": "Exp is not Neg"}), ("Neg", "halves", {}), ("Neg", "halves", {}),
    ]  # fmt: skip
    assert [v.name for v in s.regions[1][1].outputs] == ["b", "c"]
    x = np.float32([0, 1])
    y, a = s.run(None, {"x": x})
    np.testing.assert_allclose(a, np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(y, np.exp(-np.exp(x)) + np.exp(x), rtol=1e-6)
    assert halves.runs == 1
    with pytest.raises(UnsupportedError, match="Exp is not Neg") as caught:
        session(text, backends=["halves"])
    assert caught.value.hint == "add the backend onnxruntime"


def test_the_onnxruntime_backend_runs_part_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = Halves()
    real = backends.get_backend
    monkeypatch.setattr(backends, "get_backend", lambda name: halves if name == "halves" else real(name))
    s = session(ADD, backends=["halves", "onnxruntime"])
    assert [name for name, _ in s.regions] == ["onnxruntime", "halves"]
    np.testing.assert_array_equal(s.run(["z"], {"x": np.zeros((1, 2), np.float32)})[0], [[-1, -2]])


def test_values_are_let_go_after_their_last_use() -> None:
    """A chain of large values never holds more than a few of them, and a copy of the input."""
    import tracemalloc

    chain = " ".join(f"v{i + 1} = Exp(v{i})" for i in range(40))
    s = session(f"g (float[n] v0) => (float[n] y) {{ {chain} y = Neg(v40) }}")
    x = np.zeros(100_000, np.float32)
    s.run(None, {"v0": x})
    tracemalloc.start()
    s.run(None, {"v0": x})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * x.nbytes


KEPT = """g (float[2] x) => (float[2] y) { [first] a, m = Dropout(x)  b = Neg(a)
    l = Greater(k, k) k = ReduceSum<keepdims=0>(b)
    d = If(l) <then_branch = p () => (float[2] u) { u = Exp(b) }, else_branch = q () => (float[2] v) { v = Exp(b) }>
    y = Add(d, a) }"""


@pytest.mark.parametrize("backends", [["numpy"], ["onnxruntime"]])
def test_values_inside_the_graph_can_be_kept(backends: list[str]) -> None:
    s = session(KEPT, keep=["b", "first", "d"], backends=backends)
    assert [v.name for v in s.kept] == ["b", "a", "m", "d"]
    x = np.float32([1, 2])
    m, b, y = s.run(["m", "b", "y"], {"x": x})
    np.testing.assert_array_equal(m, [True, True])
    np.testing.assert_array_equal(b, -x)
    np.testing.assert_allclose(y, np.exp(-x) + x, rtol=1e-6)
    assert len(s.run(None, {"x": x})) == 1


@pytest.mark.parametrize(
    ("name", "message"), [("bb", "no node makes a value 'bb'"), ("u", "'u' lies inside a subgraph"), ("x", "'x'")]
)
def test_values_that_cannot_be_kept(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        session(KEPT, keep=[name])


def test_a_model_without_nodes() -> None:
    s = session("g (float[2] x) => (float[2] x) { }")
    np.testing.assert_array_equal(s.run(None, {"x": np.float32([1, 2])})[0], [1, 2])


def test_one_backend_by_its_name() -> None:
    s = session(ADD, backends="numpy")
    assert [b.name for b in s.backends] == ["numpy"]
    with pytest.raises(UsageError, match="no backend 'nunpy'") as found:
        session(ADD, backends="nunpy")
    assert found.value.hint is not None
    assert found.value.hint.startswith("did you mean numpy")
    own = session("g (float[2] x) => (float[2] y) { a = Neg(x) y = Neg(a) }", backends=Halves(), keep="a")
    assert ([b.name for b in own.backends], [v.name for v in own.kept]) == (["halves"], ["a"])


def test_a_closed_session_does_not_run() -> None:
    with session(ADD) as s:
        (z,) = s.run("z", {"x": np.zeros((1, 2), np.float32)})
        np.testing.assert_array_equal(z, [[-1, -2]])
    s.close()
    assert repr(s).endswith(", closed>")
    for call in (lambda: s.run(None, {"x": np.zeros((1, 2), np.float32)}), lambda: s.profile({})):
        with pytest.raises(UsageError, match="the session is closed"):
            call()


def test_inputs_that_are_not_named() -> None:
    with pytest.raises(UsageError, match="given by name, not as a list"):
        session(ADD).run(None, [np.zeros((1, 2), np.float32)])  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True, 10**30])
def test_threads_that_are_no_number(threads: Any) -> None:
    with pytest.raises(UsageError, match="at least one thread"):
        session(ADD, threads=threads)


def test_a_backend_that_runs_out_of_memory_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    s = session("g (float[2,3] x) => (float[2,3] y) { a = Relu (x) y = Tanh (a) }", backends=["nnapi"])

    def run(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(type(s._main.programs[0][0]), "run", run)
    with pytest.raises(BackendError, match="backend nnapi: 2 nodes from Relu 'a' need more memory than there is"):
        s.run(None, {"x": np.ones((2, 3), np.float32)})


def test_outputs_that_no_memory_holds() -> None:
    """A broadcast takes no memory before it is copied."""
    s = session("g (float[3,1] x, int64[2] n) => (float[a,b] y) { y = Expand (x, n) }")
    with pytest.raises(BackendError, match="the outputs need more memory than there is"):
        s.run(None, {"x": np.ones((3, 1), np.float32), "n": np.array([3, 1 << 50])})
