"""float16 operators without a CPU kernel: what is written loads in onnxruntime and gives what it makes of the source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from ortconv.ir.kernels import releases
from ortconv.ir.types import DType
from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.ortformat.precision import insert_casts
from ortconv.ortformat.writer import write
from ortconv.pipeline import optimize
from tests.batches import sampled
from tests.model_inputs import drawn
from tests.unoptimized import options, session

CASES = {
    "one node": "g (float16[2,3] x) => (float16[2,3] y) { y = Sqrt(x) }",
    "a chain": "g (float16[2,3] x) => (float16[2,3] y) { a = Abs(x) b = Sqrt(a) y = Add(b, x) }",
    "a kernel on the way": "g (float16[2,3] x) => (float16[3,2] y) { a = Abs(x) b = Transpose(a) c = Relu(b) y = Sqrt(c) }",
    "a kernel that reads an input": """g (float16[2,3] x, float16[2,3] i) => (float16[4,3] y, float16[3,2] z) {
        a = Sqrt(x) b = Concat<axis = 0>(a, i) y = Abs(b) z = Transpose(i) }""",
    "kernels at the ends": """g (float16[2,3] x) => (float16[3,2] y, int64[?] s) {
        a = Transpose(x) b = Abs(a) s = Shape(b) c = Sqrt(b) y = Identity(c) }""",
    "returned in between": "g (float16[2,3] x) => (float16[2,3] a, float16[2,3] y) { a = Abs(x) y = Sqrt(a) }",
    "cast by the model": "g (float16[2,3] x) => (float[2,3] y) { a = Abs(x) b = Sqrt(a) y = Cast<to = 1>(b) }",
    "cast twice by the model": """g (float16[2,3] x) => (float[2,3] y, float[2,3] z, float16[2,3] r) {
        a = Abs(x) b = Sqrt(a) y = Cast<to = 1>(b) z = Cast<to = 1>(b) r = Transpose<perm = [0, 1]>(b) }""",
    "returned and cast": "g (float16[2,3] x) => (float16[2,3] b, float[2,3] y) { a = Abs(x) b = Sqrt(a) y = Cast<to = 1>(b) }",
    "cast inside": "g (float16[2,3] x) => (float[2,3] y) { a = Abs(x) b = Cast<to = 1>(a) y = Sqrt(b) }",
    "cast to what it is": """g (float16[2,3] x) => (float16[2,3] y) {
        a = Sqrt(x) b = Cast<to = 10>(a) c = Add(b, a) d = Cast<to = 10>(c) y = Mul(d, b) }""",
    "cast to integers": "g (float16[2,3] x) => (int32[2,3] y) { a = Abs(x) b = Sqrt(a) y = Cast<to = 6>(b) }",
    "cast to integers and read": """g (float16[2,3] x) => (int32[2,3] y, float16[3,2] z) {
        a = Abs(x) b = Sqrt(a) y = Cast<to = 6>(b) z = Transpose(b) }""",
    "rounded by the model": """g (float[2,3] x) => (float16[2,3] y) { a = Cast<to = 10>(x) b = Abs(a) y = Neg(b) }""",
    "cast from what is exact": """g (float16[2,3] x, bool[2,3] c, int8[2,3] i) => (float16[2,3] y, float16[3,2] z) {
        a = Cast<to = 10>(c) b = Cast<to = 10>(i) d = Mul(a, x) y = Add(d, b) z = Transpose(b) }""",
    "made of that type": "g (float16[3,3] x) => (float16[3,3] y) { e = EyeLike<dtype = 10>(x) y = Sub(x, e) }",
    "constants": """g (float16[2,3] x) => (float16[2,3] y) <float16[3] k = {1, 2, 3}> { a = Mul(x, k) y = Add(a, k) }""",
    "mixed types": """g (float16[2,3] x, bool[2,3] c) => (float16[2,3] y) { a = Abs(x) b = Where(c, a, x) y = Sqrt(b) }""",
    "subgraphs": """g (float16[2,3] x, bool c) => (float16[2,3] y) {
        a = Abs(x)
        b = If(c) <then_branch = t () => (float16[2,3] p) { p = Sqrt(a) }, else_branch = e () => (float16[2,3] q) { q = Neg(x) }>
        y = Sqrt(b) }""",
    "function": "g (float16[2,3] x) => (float16[2,3] y) { a = HardSwish(x) y = Abs(a) }",
    "a bias of another rank": """g (float16[2,3] x, float16[2,2,3] b) => (float16[A,B,C] y) {
        y = com.microsoft.FastGelu(x, b) }""",
    "a bias of one element": """g (float16[2,3] x, float16[1] b) => (float16[2,3] y) {
        a = com.microsoft.FastGelu(x, b) y = Abs(a) }""",
    "a bias of each column": "g (float16[2,3] x, float16[3] b) => (float16[2,3] y) { y = com.microsoft.FastGelu(x, b) }",
    "function with an attribute beyond float16": "g (float16[2,3] x) => (float16[2,3] y) { a = Swish<alpha = 1e38>(x) y = Abs(a) }",
}  # fmt: skip

OPSETS = {"function with an attribute beyond float16": 24}
"""The operator sets of cases; 17 for the others."""


def source(case: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {OPSETS.get(case, 17)}]>\n{CASES[case]}')


def feeds(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    found = drawn(proto, lambda rng, shape, dtype: rng.random(shape) * 3)
    for array in found.values():
        if array.ndim and array.dtype.kind == "f":
            array.flat[:3] = np.nan, np.inf, -0.0
    return found


@sampled(4)
@pytest.mark.parametrize("level", ["disable", "basic", "extended", "all"])
@pytest.mark.parametrize("case", CASES)
def test_runs_in_onnxruntime_as_the_source_does(case: str, level: str, tmp_path: Path) -> None:
    proto = source(case)
    model = from_proto(source(case))
    optimize(model, level)
    verify(model.graph)
    write(model, tmp_path / "m.ort")
    ours, theirs = session((tmp_path / "m.ort").read_bytes()), session(proto.SerializeToString())
    assert [o.name for o in ours.get_outputs()] == [o.name for o in theirs.get_outputs()]
    for want, got in zip(theirs.run(None, feeds(proto)), ours.run(None, feeds(proto)), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=2e-3, atol=1e-6)


ROUNDED = {"rounded by the model"}
"""Cases where onnxruntime leaves out a Cast to float16 of the model."""


@pytest.mark.parametrize("case", sorted(CASES.keys() - ROUNDED - {"subgraphs"}))
def test_no_more_casts_than_onnxruntime(case: str, tmp_path: Path) -> None:
    model = from_proto(source(case))
    optimize(model, "disable")
    settings = options()
    settings.optimized_model_filepath = str(tmp_path / "theirs.onnx")
    onnxruntime.InferenceSession(source(case).SerializeToString(), settings, providers=["CPUExecutionProvider"])
    theirs = onnx.load(tmp_path / "theirs.onnx").graph
    assert sum(n.op == "Cast" for n in model.graph) <= sum(n.op_type == "Cast" for n in theirs.node)


def test_no_cast_returns_what_is_wide_anyway() -> None:
    model = from_proto(source("cast by the model"))
    optimize(model, "disable")
    assert [n.op for n in model.graph] == ["Cast", "Abs", "Sqrt"]
    assert [v.name for v in model.graph.outputs] == ["y"]


def test_a_mask_is_cast_once() -> None:
    model = from_proto(source("cast from what is exact"))
    optimize(model, "disable")
    casts = [(n.dtype(0), n.out.dtype) for n in model.graph if n.op == "Cast"]
    assert (DType.BOOL, DType.FLOAT) in casts
    assert (DType.BOOL, DType.FLOAT16) not in casts


@pytest.mark.parametrize("case", sorted(ROUNDED))
def test_roundings_of_the_model_stay(case: str) -> None:
    model = from_proto(source(case))
    optimize(model, "disable")
    assert [n.attrs["to"] for n in model.graph if n.op == "Cast"].count(DType.FLOAT16) >= 1


def test_weights_are_widened_at_the_highest_level_only() -> None:
    found = {}
    for level in ("layout", "all"):
        model = from_proto(source("constants"))
        optimize(model, level)
        found[level] = {v.const.dtype for v in model.graph.initializers.values() if v.const is not None}
    assert found == {"layout": {DType.FLOAT16}, "all": {DType.FLOAT}}


def test_scales_that_a_kernel_packs_stay_constants() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float16[2,32] x, uint8[4,1,16] b, float16[4,1] s) => (float16[2,4] y) {
            y = com.microsoft.MatMulNBits<K = 32, N = 4, block_size = 32, accuracy_level = 4>(x, b, s) }""")
    rng = np.random.default_rng(0)
    packed = {"b": rng.integers(0, 256, (4, 1, 16), np.uint8), "s": rng.random((4, 1)).astype(np.float16)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in packed.items())
    del proto.graph.input[1:]
    model = from_proto(proto)
    assert insert_casts(model, releases().index("1.17")) == 2
    product = next(n for n in model.graph if n.op == "MatMulNBits")
    scales = product.input(2)
    assert scales is not None
    assert scales.dtype is DType.FLOAT
    assert scales.constant is not None


@pytest.mark.parametrize("type", ["float", "double", "bfloat16"])
def test_other_types_stay(type: str) -> None:
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]>\ng ({type}[2] x) => ({type}[2] y) {{ y = Sqrt(x) }}'
    )
    assert insert_casts(from_proto(proto)) == 0


def test_nodes_of_another_provider_stay() -> None:
    model = from_proto(source("a chain"))
    for node in model.graph:
        node.ep = "NnapiExecutionProvider"
    assert insert_casts(model) == 0
