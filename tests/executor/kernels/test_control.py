"""If, Loop, Scan and SequenceMap against onnxruntime, which runs the body as a graph where the kernel gets a function."""

from types import SimpleNamespace

import numpy as np
import onnx.parser
import pytest
from single_node import assert_same, run_kernel

from ortconv.errors import BackendError, UnsupportedError
from ortconv.ir.types import DType, TensorType
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session
from tests import unoptimized
from tests.batches import batched

F32, I64 = np.float32, np.int64


def onnxruntime_outputs(text, feeds, opset=22):
    return unoptimized.run(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}'), feeds)


def f32(*values):
    return np.array(values, F32)


@pytest.mark.parametrize("condition", [np.array(True), np.array(False), np.array([True])])
def test_if(condition):
    x = f32(1, 2, 3)
    branches = {"then_branch": lambda: (x + x, x), "else_branch": lambda: (x * x, x)}
    got = run_kernel("If", [condition], branches, n_outputs=2)
    text = f"""g (bool[{",".join(map(str, condition.shape))}] c, float[3] x) => (float[3] y, float[3] z) {{
        y, z = If (c) <
            then_branch = t () => (float[3] a, float[3] b) {{ a = Add (x, x)  b = Identity (x) }},
            else_branch = e () => (float[3] a, float[3] b) {{ a = Mul (x, x)  b = Identity (x) }}>
    }}"""
    assert_same(got, onnxruntime_outputs(text, {"c": condition, "x": x}))


LOOP = """g (int64 m, bool c, float[2] x) => (float[2] final, float[?,2] history, int64[?] steps) {{
    final, history, steps = Loop ({m}, {c}, x) <
        body = b (int64 i, bool going, float[2] v) => (bool again, float[2] w, float[2] h, int64 s) {{
            one = Constant <value_float = 1.0> ()
            limit = Constant <value_float = 6.0> ()
            w = Add (v, one)
            h = Identity (w)
            s = Identity (i)
            largest = ReduceMax <keepdims = 0> (w)
            again = Less (largest, limit)
        }}>
}}"""


def _loop_body(i, going, v):
    assert i.dtype == I64
    assert i.shape == ()
    assert going.dtype == bool
    w = v + F32(1)
    return np.asarray(w.max() < 6), w, w, i


@pytest.mark.parametrize("m", [None, 0, 1, 3, 100])
@pytest.mark.parametrize("c", [None, False, True])
def test_loop(c, m):
    trips, condition = np.array(m or 0), np.array(bool(c))
    body = _typed(_loop_body, (DType.BOOL, ()), (DType.FLOAT, (2,)), (DType.FLOAT, (2,)), (DType.INT64, ()))
    inputs = [None if m is None else trips, None if c is None else condition, f32(0, 2)]
    got = run_kernel("Loop", inputs, {"body": body}, n_outputs=3)
    text = LOOP.format(m="" if m is None else "m", c="" if c is None else "c")
    assert_same(got, onnxruntime_outputs(text, {"m": trips, "c": condition, "x": f32(0, 2)}))


def _typed(function, *types):
    """The function as a body that states its output types, as an executor's bodies do."""

    class Body(SimpleNamespace):
        def __call__(self, *inputs):
            return function(*inputs)

    return Body(output_types=tuple(TensorType(dtype, shape) for dtype, shape in types))


def test_loop_carries_sequences():
    def body(i, going, items):
        return going, [*items, np.asarray(i * 2)]

    [got] = run_kernel("Loop", [np.array(3), None, []], {"body": body})
    assert_same(got, [np.array(0), np.array(2), np.array(4)])


SCAN = """g (float[2] start, float[3,4,2] x, float[4,3,2] z) => (float[2] final, float[a,b,c] sums, float[d,e,f] products) {
    final, sums, products = Scan (start, x, z) <num_scan_inputs = 2, %s,
        body = b (float[2] state, float[?,2] p, float[?,2] q) => (float[2] next, float[?,2] s, float[?,2] t) {
            zero = Constant <value_ints = [0]> ()
            total = ReduceSum <keepdims = 0> (p, zero)
            next = Add (state, total)
            s = Add (p, next)
            t = Mul (p, q)
        }>
}"""


def _scan_body(state, p, q):
    following = state + p.sum(axis=0)
    return following, p + following, p * q


@pytest.mark.parametrize(
    "attributes",
    [
        {"scan_input_axes": (0, 1)},
        {"scan_input_axes": (0, -2), "scan_output_axes": (1, -1)},
        {"scan_input_axes": (0, 1), "scan_input_directions": (1, 0), "scan_output_directions": (0, 1)},
        {"scan_input_axes": (1, 0), "scan_input_directions": (1, 1), "scan_output_axes": (2, 1)},
    ],
)
def test_scan(attributes):
    rng = np.random.default_rng(0)
    start, x, z = (rng.standard_normal(shape).astype(F32) for shape in [(2,), (3, 4, 2), (4, 3, 2)])
    arguments = {"body": _scan_body, "num_scan_inputs": 2, **attributes}
    got = run_kernel("Scan", [start, x, z], arguments, n_outputs=3)
    text = SCAN % ", ".join(f"{name} = {list(value)}" for name, value in attributes.items())
    assert_same(got, onnxruntime_outputs(text, {"start": start, "x": x, "z": z}))


def test_scan_of_nothing_has_the_declared_type():
    body = _typed(_scan_body, (DType.FLOAT, (2,)), (DType.FLOAT16, (3, None)))
    attributes = {"body": body, "num_scan_inputs": 1, "scan_output_axes": (-1,)}
    final, scanned = run_kernel("Scan", [f32(1, 2), np.zeros((0, 2), F32)], attributes, n_outputs=2)
    assert_same(final, f32(1, 2))
    assert_same(scanned, np.zeros((3, 0, 0), np.float16))


SCAN_8 = """g (int64[2] lengths, float[2,1] start, float[2,3,1] x) => (float[2,1] final, float[2,3,1] sums) {
    final, sums = Scan (%s, start, x) <num_scan_inputs = 1, directions = [%d],
        body = b (float[1] state, float[1] p) => (float[1] next, float[1] s) {
            next = Add (state, p)
            s = Identity (next)
        }>
}"""


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("lengths", [None, [3, 2]])
def test_batched_scan(lengths, direction):
    x = np.arange(6, dtype=F32).reshape(2, 3, 1)
    start = f32([10], [20])
    attributes = {"num_scan_inputs": 1, "directions": (direction,), "body": lambda s, p: (s + p, s + p)}
    given = np.array(lengths or [3, 3])
    got = run_kernel("Scan", [lengths and given, start, x], attributes, opset=8, n_outputs=2)
    text = SCAN_8 % ("lengths" if lengths else "", direction)
    assert_same(got, onnxruntime_outputs(text, {"lengths": given, "start": start, "x": x}, opset=8))


def test_sequence_map():
    sequence = [f32(1, 2), f32(3)]
    body = {"body": lambda x, y, k: (x + y * k, y)}
    got = run_kernel("SequenceMap", [sequence, [f32(10), f32(20)], f32(2)], body, n_outputs=2)
    assert_same(got, [[f32(21, 22), f32(43)], [f32(10), f32(20)]])


ENDLESS = """g ({trips}bool c, float[2] x) => (float[2] y) {{
    y = Loop ({m}, {c}, x) <
        body = b (int64 i, bool going, float[2] v) => (bool again, float[2] w) {{ {again} w = Add (v, v) }}>
}}"""
AGAIN = [
    "again = Identity (going)",
    "k = Identity (going) again = Identity (k)",
    "again = Constant <value = bool {1}> ()",
]


@batched
@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("m", [None, 3, 1 << 40])
@pytest.mark.parametrize("c", [None, False, True])
def test_loop_whose_body_does_not_end_it(c, m, again):
    """Such a loop is refused where it would run forever, and nowhere else."""
    text = ENDLESS.format(
        m='""' if m is None else "m", c='""' if c is None else "c", trips="" if m is None else "int64 m, ", again=again
    )
    model = from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 22]>\n{text}'))
    session = Session(model, ["numpy"])
    feeds = {"x": f32(1, 2), "c": np.array(bool(c))} | ({} if m is None else {"m": np.array(m)})
    if c is not False and m != 3:
        with pytest.raises(BackendError, match=r"Loop 'y' .*its body never ends it"):
            session.run(None, feeds)
    else:
        np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["x"] * (1 if c is False else 8))


def test_a_body_may_end_a_loop_without_a_number_of_trips():
    text = ENDLESS.format(
        m='""',
        c='""',
        trips="",
        again="k = ReduceSum <keepdims = 0> (v) n = Constant <value = float {9.0}> () again = Less (k, n)",
    )
    model = from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 22]>\n{text}'))
    [got] = Session(model, ["numpy"]).run(None, {"x": f32(1, 2), "c": np.array(True)})
    assert got.tolist() == [8, 16]


def test_scan_over_an_endless_sequence_of_nothing():
    with pytest.raises(UnsupportedError, match="steps, the limit is"):
        run_kernel("Scan", [np.zeros((1 << 40, 0), F32)], {"body": lambda x: (x,), "num_scan_inputs": 1}, n_outputs=1)


def test_a_loop_passes_its_number_and_condition_as_declared():
    text = """g (int64 m, bool[1] c, float[2] x) => (float[?] y) {
        y = Loop (m, c, x) <
            body = b (int64[1] i, bool[1] going, float[2] v) => (bool[1] again, float[2] w) {
                zero = Constant <value_ints = [0]> ()
                k = Squeeze (i, zero)
                f = Cast <to = 1> (k)
                w = Add (v, f)
                s = Shape (going)
                again = Equal (s, s)
            }>
    }"""
    feeds = {"m": np.array(3), "c": np.array([True]), "x": f32(1, 2)}
    model = from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}'))
    assert_same(Session(model, ["numpy"]).run(None, feeds), onnxruntime_outputs(text, feeds))
