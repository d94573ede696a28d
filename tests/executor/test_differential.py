"""Every operator of com.microsoft that has a kernel, against onnxruntime's kernel on random cases.

A few cases of each by default; `--differential 200` draws that many. onnxruntime multiplies integers exactly here
(session.x64quantprecision), which its default on x86 does not. Integers are equal but for the operators that say why not.
"""

import inspect
import zlib

import contrib_cases
import float_cases
import ml_dtypes
import numpy as np
import onnx.parser
import onnxruntime
import pytest
import quantized_cases
from draw import Draw, Tolerance
from onnx import TensorProto, helper, numpy_helper
from single_node import run_kernel, run_onnxruntime

from ortconv.executor.kernels import registry
from ortconv.ir.schema import schema
from ortconv.runtime.session import Session
from tests import unoptimized
from tests.batches import batched

OPERATORS = float_cases.OPERATORS | quantized_cases.OPERATORS | contrib_cases.OPERATORS
FEW = 8


def pytest_generate_tests(metafunc):
    if "index" in metafunc.fixturenames:
        metafunc.parametrize("index", range(metafunc.config.getoption("--differential") or FEW))


def assert_within(got, want, tolerance):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind in "iu":
        difference = np.abs(got.astype(np.int64) - want.astype(np.int64))
        assert difference.max(initial=0) <= tolerance.integer
        assert np.count_nonzero(difference) <= tolerance.share * max(difference.size, 50)
    elif want.dtype == object:
        assert got.tolist() == want.tolist()
    else:
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), tolerance.rtol, tolerance.atol, equal_nan=True
        )


@batched
@pytest.mark.parametrize("op", OPERATORS)
def test_as_onnxruntime(op, index):
    draw, tolerance, domain, _ = OPERATORS[op]
    case = draw(Draw([zlib.crc32(op.encode()), index]))
    options = {"domain": domain, "n_outputs": case.n_outputs}
    want = run_onnxruntime(op, case.inputs, case.attributes, **options)
    got = run_kernel(op, case.inputs, case.attributes, **options)
    for g, w in zip(got, want, strict=True):
        assert_within(g, w, tolerance)


def test_integers_may_differ_only_where_a_reason_is_given():
    for operator in OPERATORS.values():
        assert bool(operator.tolerance.integer) == bool(operator.why)


WITHOUT_KERNEL = {"BiasSoftmax", "NhwcFusedConv", "SparseAttention"}
"""onnxruntime runs these on no CPU in float32, or only if the caller binds outputs to the memory of inputs."""


def test_every_kernel_of_com_microsoft_is_drawn():
    registry.lookup("com.microsoft", "NoSuchOperator", 1)  # imports all families
    kernels = {op for domain, op in registry._kernels if domain == "com.microsoft"}
    assert kernels == OPERATORS.keys() | WITHOUT_KERNEL


BOTH_NAMES = {"mode": {"bilinear", "linear"}, "across_channels": {0, None}}
"""Defaults that mean the same: GridSample has two names for a mode, MeanVarianceNormalization has axes later."""


@pytest.mark.slow
def test_defaults_of_kernels_are_those_of_the_schemas():
    registry.lookup("com.microsoft", "NoSuchOperator", 1)
    wrong = []
    for (domain, op), kernels in registry._kernels.items():
        for kernel, version in ((k, v) for k in kernels for v in range(k.since, min(k.until, 27) + 1)):
            found, parameters = schema(domain, op, version), inspect.signature(kernel.reference).parameters
            for name, default in found.defaults.items() if found else ():
                own = parameters[name].default if name in parameters else inspect.Parameter.empty
                if own is inspect.Parameter.empty or {own, default} <= BOTH_NAMES.get(name, set()):
                    continue
                if np.asarray(own).dtype.kind != "f" or not np.isclose(own, default, rtol=1e-6, atol=0):
                    wrong += [(domain, op, version, name, own, default)] * (own != default)
    assert not wrong


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_default_epsilon_of_a_sum(op):
    """The kernel, and the group of elementwise nodes, of a sum so small that epsilon matters."""
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[64,256] x, float[64,256] z) => (float y)
        {{ n = com.microsoft.{op}(x, z, s) r = Relu(n) y = Neg(r) }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(256, np.float32), "s"))
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=(64, 256)).astype(np.float32) / 1000 for name in "xz"}
    (want,) = unoptimized.session(proto).run(None, feeds)
    for backend in ("numpy", "numpy:reference"):
        with Session(proto.SerializeToString(), backend) as session:
            np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["int4", "uint4", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("zero_points", [False, True])
def test_tables_of_types_that_cannot_be_fed(kind, zero_points):
    if zero_points and kind.startswith("float8"):
        pytest.skip("floats have no zero points")
    d, dtype = Draw(4), np.dtype(getattr(ml_dtypes, kind))
    data, scales = d.floats((5, 40, 2), spread=3.0).astype(dtype), d.positive((5, 3, 2))
    inputs = [data, np.array([[0, -1], [7, 4]]), scales]
    inputs += [d.floats((5, 3, 2), spread=3.0).astype(dtype)] * zero_points
    attributes = {"block_size": 16, "quantize_axis": 1, "gather_axis": 0}
    names = ["data", "indices", "scales", "zero_points"][: len(inputs)]
    graph = helper.make_graph(
        [helper.make_node("GatherBlockQuantized", names, ["y"], domain="com.microsoft", **attributes)],
        "g",
        [helper.make_tensor_value_info("indices", TensorProto.INT64, [2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(x, name) for name, x in zip(names, inputs) if name != "indices"],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    want = unoptimized.run(helper.make_model(graph, opset_imports=opsets, ir_version=10), {"indices": inputs[1]})[0]
    got = run_kernel("GatherBlockQuantized", inputs, attributes, domain="com.microsoft")[0]
    assert_within(got, want, Tolerance())
    assert not got[1, 0].any()


@pytest.mark.parametrize(("axis", "bias", "inner"), [(3, (2, 1, 1, 5), 1), (-1, (1, 3, 4, 5), 0), (2, (2, 1, 4, 5), 1)])
def test_softmax_with_bias(axis, bias, inner):
    d = Draw(5)
    x, b = d.floats((2, 3, 4, 5)), d.floats(bias)
    got = run_kernel("BiasSoftmax", [x, b], {"axis": axis, "is_inner_broadcast": inner}, domain="com.microsoft")[0]
    want = run_onnxruntime("Softmax", [x + b], {"axis": axis}, opset=11)[0]
    assert_within(got, want, Tolerance())


def test_fused_convolution_of_channels_last():
    d = Draw(6)
    x, w, b, z = d.floats((2, 3, 8, 7)), d.floats((4, 3, 3, 3)), d.floats((4,)), d.floats((2, 4, 4, 4))
    attributes = {"activation": "Relu", "pads": [1, 1, 1, 1], "strides": [2, 2]}
    want = run_onnxruntime("FusedConv", [x, w, b, z], attributes, domain="com.microsoft")[0]
    x, z = (np.ascontiguousarray(np.moveaxis(v, 1, -1)) for v in (x, z))
    got = run_kernel("NhwcFusedConv", [x, w, b, z], attributes, domain="com.microsoft")[0]
    assert_within(got, np.moveaxis(want, 1, -1), Tolerance(1e-4, 1e-4))


@pytest.mark.parametrize(("batch", "length", "past"), [(1, 40, 0), (1, 1, 33), (2, 20, 0), (2, 1, 50)])
@pytest.mark.parametrize("packed", [False, True])
def test_attention_to_blocks(batch, length, past, packed):
    d, heads, shared, size, most, block = Draw([batch, length, packed]), 4, 2, 16, 64, 16
    mask = np.tril(d.rng.random((2, 4, 4)) < 0.5) | np.eye(4, dtype=bool)
    columns = [np.nonzero(m)[1] for m in mask]
    rows = [[0, *np.cumsum(m.sum(axis=1))] for m in mask]
    width = max(map(len, columns))
    q, k, v = (d.floats((batch, length, n * size)) for n in (heads, shared, shared))
    cache = [d.floats((batch, shared, most, size)) for _ in range(2)]
    total = past + length
    inputs = [
        *([np.concatenate([q, k, v], axis=2), None, None] if packed else [q, k, v]), *cache, np.array(rows, np.int32),
        np.array([np.pad(c, (0, width - len(c)), constant_values=-1) for c in columns], np.int32),
        np.array([total], np.int32), np.full(batch, total, np.int32), *(d.floats((most, size // 2)) for _ in range(2)),
    ]  # fmt: skip
    attributes = {"num_heads": heads, "kv_num_heads": shared, "sparse_block_size": block, "do_rotary": 1}
    got = run_kernel("SparseAttention", inputs, attributes, domain="com.microsoft", n_outputs=3)
    want = in_shared_memory("SparseAttention", inputs, attributes, {3: 1, 4: 2})
    for g, w in zip(got, want, strict=True):
        assert_within(g, w, Tolerance())


def in_shared_memory(op, inputs, attributes, shared):
    """The outputs of onnxruntime for a node of com.microsoft, some of them in the memory of inputs."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(len(shared) + 1)]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, domain="com.microsoft", **attributes)],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in zip(names, inputs)
            if n
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    session = unoptimized.session(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    binding = session.io_binding()
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(x.copy()) for n, x in zip(names, inputs) if n}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for i, name in enumerate(outputs):
        source = next((slot for slot, output in shared.items() if output == i), None)
        if source is None:
            binding.bind_output(name)
        else:
            binding.bind_ortvalue_output(name, values[names[source]])
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()
