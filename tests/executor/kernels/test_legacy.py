"""Operators before opset 7: against onnxruntime on what onnx's version converter makes of them, and against numpy."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, version_converter
from single_node import assert_same, run_kernel

from ortconv.errors import OrtconvError, UnsupportedError
from ortconv.models import load
from ortconv.runtime.session import Session
from tests import unoptimized
from tests.batches import sampled, slow_except

BROADCAST = [
    ((2, 3, 4, 5), (2, 3, 4, 5), {}),
    ((2, 3, 4, 5), (4, 5), {"broadcast": 1}),
    ((2, 3, 4, 5), (3, 4), {"broadcast": 1, "axis": 1}),
    ((2, 3, 4, 5), (2,), {"broadcast": 1, "axis": 0}),
    ((2, 3), (1,), {"broadcast": 1}),
    ((2, 0, 3), (3,), {"broadcast": 1}),
    ((), (), {}),
]
LOGIC = ("And", "Or", "Xor")


def model(op, opset, inputs, attributes, n_outputs=1):
    names = [f"x{i}" for i in range(len(inputs))]
    outputs = [f"y{i}" for i in range(n_outputs)]
    types = [helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs]
    result = TensorProto.BOOL if op in (*LOGIC, "Equal", "Less", "Greater", "Not") else TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, **attributes)],
        "g",
        [helper.make_tensor_value_info(n, t, x.shape) for n, t, x in zip(names, types, inputs)],
        [helper.make_tensor_value_info(n, result, None) for n in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


def run(tmp_path, op, opset, inputs, attributes, n_outputs=1):
    path = tmp_path / "old.onnx"
    onnx.save(model(op, opset, inputs, attributes, n_outputs), path)
    return Session(path).run(None, {f"x{i}": x for i, x in enumerate(inputs)})


def converted(op, opset, inputs, attributes):
    newer = version_converter.convert_version(model(op, opset, inputs, attributes), 9)
    newer.ir_version = 8
    return unoptimized.run(newer, {f"x{i}": x for i, x in enumerate(inputs)})[0]


def random(rng, shape, op=""):
    x = rng.standard_normal(shape)
    if op in LOGIC:
        return np.asarray(x > 0)
    return np.asarray(np.abs(x) + 0.5 if op in ("Pow", "Div", "Sqrt", "Log") else x, np.float32)


@sampled(4)
@pytest.mark.parametrize(("a", "b", "attributes"), BROADCAST)
@pytest.mark.parametrize(
    ("op", "opset"),
    [(op, 6) for op in ("Add", "Sub", "Mul", "Div")] + [(op, 1) for op in (*LOGIC, "Less", "Greater", "Pow", "Add")],
)
def test_broadcasting_is_asked_for(rng, tmp_path, op, opset, a, b, attributes):
    inputs = [random(rng, a, op), random(rng, b, op)]
    got = run(tmp_path, op, opset, inputs, attributes)[0]
    shape = attributes.get("axis", len(a) - len(b))
    right = inputs[1].reshape(()) if inputs[1].size == 1 else np.expand_dims(
        inputs[1], tuple(range(len(b), len(a) - shape))
    )  # fmt: skip
    assert_same(got, run_kernel(op, [inputs[0], right], opset=13)[0])
    if opset == 6 and a and "axis" not in attributes:  # the converter gets these wrong
        assert_same(got, converted(op, opset, inputs, attributes))


def test_equal_of_integers_broadcasts_from_an_axis(tmp_path):
    a, b = np.arange(6, dtype=np.int32).reshape(2, 3), np.array([1, 4], np.int32)
    got = run(tmp_path, "Equal", 1, [a, b], {"broadcast": 1, "axis": 0})[0]
    np.testing.assert_array_equal(got, a == b[:, None])


@pytest.mark.parametrize(
    ("a", "b", "attributes"), [((2, 3), (3,), {}), ((3,), (2, 3), {"broadcast": 1}), ((2, 3), (2,), {"broadcast": 1})]
)
def test_shapes_that_do_not_go_together(rng, a, b, attributes):
    with pytest.raises(OrtconvError):
        run_kernel("Add", [random(rng, a), random(rng, b)], attributes, opset=6)


UNARY = ("Abs", "Ceil", "Elu", "Exp", "Floor", "HardSigmoid", "LeakyRelu", "Log", "Neg", "Reciprocal", "Relu",
         "Sigmoid", "Sqrt", "Tanh")  # fmt: skip


@pytest.mark.parametrize("op", slow_except(UNARY[::4], UNARY))
def test_a_memory_hint_means_nothing(rng, tmp_path, op):
    x = random(rng, (2, 3), op)
    got = run(tmp_path, op, 1, [x], {"consumed_inputs": [0]})[0]
    assert_same(got, converted(op, 6, [x], {}), rtol=2e-5)


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_variadic(rng, tmp_path, op):
    inputs = [random(rng, (2, 3)) for _ in range(3)]
    got = run(tmp_path, op, 1, inputs, {"consumed_inputs": [0, 0, 0]})[0]
    assert_same(got, converted(op, 6, inputs, {}))


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize(("c", "broadcast"), [((2, 4), 0), ((4,), 1), ((1,), 1), ((2, 1), 1)])
def test_gemm(rng, tmp_path, opset, c, broadcast):
    inputs = [random(rng, s) for s in ((3, 2), (4, 3), c)]
    attributes = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
    got = run(tmp_path, "Gemm", opset, inputs, {**attributes, "broadcast": broadcast})[0]
    assert_same(got, unoptimized.run(model("Gemm", 11, inputs, attributes), dict(zip(["x0", "x1", "x2"], inputs)))[0])


@pytest.mark.parametrize("opset", [1, 6])
def test_slopes_belong_to_channels(rng, tmp_path, opset):
    x, slope = random(rng, (2, 3, 4, 3)), random(rng, (3,))
    want = np.where(x >= 0, x, x * slope[:, None, None])
    assert_same(run(tmp_path, "PRelu", opset, [x, slope], {})[0], want)
    assert_same(run(tmp_path, "PRelu", opset, [x, slope[:1]], {})[0], np.where(x >= 0, x, x * slope[0]))


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("spatial", [0, 1])
def test_batch_normalization(rng, tmp_path, opset, spatial):
    x = random(rng, (5, 3, 2, 4))
    size = (3,) if spatial else (3, 2, 4)
    scale, b, mean, var = (np.abs(random(rng, size)) for _ in range(4))
    attributes = {"spatial": spatial, "epsilon": 1e-3, "momentum": 0.7}
    hint = {"consumed_inputs": [0, 0, 0, 1, 1]} if opset == 1 else {}
    parameters = [x, scale, b, mean, var]
    tested = run(tmp_path, "BatchNormalization", opset, parameters, {**attributes, **hint, "is_test": 1})[0]
    assert_same(tested, normalized(x, scale, b, mean, var), rtol=1e-4, atol=1e-5)
    got = run(tmp_path, "BatchNormalization", opset, parameters, {**attributes, **hint}, n_outputs=5)
    axes = (0, 2, 3) if spatial else (0,)
    m, v = x.mean(axes), x.var(axes)
    want = [normalized(x, scale, b, m, v), 0.7 * mean + 0.3 * m, 0.7 * var + 0.3 * v, m, v]
    for g, w in zip(got, want, strict=True):
        assert_same(g, w.astype(np.float32), rtol=1e-4, atol=1e-5)


def normalized(x, scale, b, mean, var):
    scale, b, mean, var = (v[:, None, None] if v.ndim == 1 else v for v in (scale, b, mean, var))
    return ((x - mean) / np.sqrt(var + np.float32(1e-3)) * scale + b).astype(np.float32)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_upsample(rng, tmp_path, mode):
    x = random(rng, (1, 2, 3, 4))
    got = run(tmp_path, "Upsample", 1, [x], {"height_scale": 2.0, "width_scale": 3.0, "mode": mode})[0]
    newer = model("Upsample", 7, [x], {"scales": [1.0, 1.0, 2.0, 3.0], "mode": mode.replace("bilinear", "linear")})
    assert_same(got, unoptimized.run(newer, {"x0": x})[0])


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "want"),
    [
        ("Cast", [np.array([1.5, -2.0], np.float32)], {"to": "FLOAT"}, np.array([1.5, -2.0], np.float32)),
        ("Concat", [np.ones((2, 1), np.float32)] * 2, {}, np.ones((2, 2), np.float32)),
        ("Pad", [np.ones((1, 2), np.float32)], {"paddings": [0, 1, 0, 0]}, np.array([[0, 1, 1]], np.float32)),
        ("Reshape", [np.ones((2, 3), np.float32)], {"shape": [0, -1, 1]}, np.ones((2, 3, 1), np.float32)),
        ("Clip", [np.array([-1, 5], np.float32)], {"min": 0.0, "max": 2.0}, np.array([0, 2], np.float32)),
        ("Dropout", [np.ones((2, 3), np.float32)], {"is_test": 1}, np.ones((2, 3), np.float32)),
    ],
)
def test_first_versions(tmp_path, op, inputs, attributes, want):
    assert_same(run(tmp_path, op, 1, inputs, attributes)[0], want)


def test_every_version_of_every_operator_has_a_kernel_that_takes_its_attributes():
    from ortconv.executor.kernels.evaluate import _MEMORY_HINT
    from ortconv.executor.kernels.registry import lookup

    lacking = []
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or schema.support_level == schema.SupportType.EXPERIMENTAL:
            continue
        kernel = lookup("", schema.name, schema.since_version)
        known = None if kernel is None else kernel.attributes
        if kernel is None or (known is not None and not set(schema.attributes) <= known | {_MEMORY_HINT}):
            lacking.append(f"{schema.name}-{schema.since_version}")
    assert lacking == []


def test_conversion_refuses_old_operators(tmp_path):
    """Add has new attributes in operator set 7; Relu is the same."""
    path = tmp_path / "old.onnx"
    onnx.save(model("Relu", 6, [np.ones((2, 3), np.float32)], {}), path)
    assert load(path).graph.opset("") == 7
    onnx.save(model("Add", 6, [np.ones((2, 3), np.float32)] * 2, {}), path)
    with pytest.raises(UnsupportedError, match="opset 6"):
        load(path)
    assert load(path, only_to_run=True).graph.opset("") == 6


REMOVED = [
    ("Affine", [(2, 3)], {"alpha": 0.5, "beta": 2.0}),
    ("Affine", [()], {}),
    ("Crop", [(1, 2, 6, 7)], {"border": [1, 2, 3, 0]}),
    ("Crop", [(1, 2, 6, 7)], {"border": [1, 2, 0, 0], "scale": [3, 4]}),
    ("DynamicSlice", [(4, 5, 6), [1, -3], [3, 9]], {}),
    ("DynamicSlice", [(4, 5, 6), [0, -3], [9, -1], [2, 0]], {}),
    ("ImageScaler", [(2, 3, 4, 5)], {"scale": 0.5, "bias": [1.0, -2.0, 3.0]}),
    ("ParametricSoftplus", [(3, 4)], {"alpha": 0.7, "beta": -90.0}),
    ("Scale", [(3, 4)], {"scale": 0.25}),
    ("ScaledTanh", [(3, 4)], {"alpha": 1.5, "beta": 0.3}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), REMOVED)
def test_removed_operators(rng, op, inputs, attributes):
    arrays = [random(rng, x) if isinstance(x, tuple) else np.array(x, np.int64) for x in inputs]
    proto = model(op, 8, arrays, attributes)
    feeds = {f"x{i}": x for i, x in enumerate(arrays)}
    assert_same(Session(proto).run(None, feeds)[0], unoptimized.run(proto, feeds)[0])


def test_a_border_beyond_the_image():
    with pytest.raises(OrtconvError, match="leaves no"):
        run_kernel("Crop", [np.zeros((1, 1, 3, 3), np.float32)], {"border": [2, 2, 2, 2]}, opset=8)
