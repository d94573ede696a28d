"""Conversions between element types, against onnxruntime and the numbers of the formats."""

import numpy as np
import pytest
from onnx import helper
from single_node import IR_VERSION, assert_same, compare, run_kernel

from ortconv.executor.kernels.cast import convert
from ortconv.ir.types import DType
from tests import unoptimized
from tests.batches import batched

TYPES = [
    DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.INT8, DType.INT16, DType.INT32, DType.INT64, DType.UINT8,
    DType.UINT16, DType.UINT32, DType.UINT64, DType.BOOL,
]  # fmt: skip
FLOAT8 = [DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ]


def _values(source, to):
    if source.numpy.kind == "b":
        return np.array([False, True])
    if source.numpy.kind != "f":
        x = np.array([0, 1, 2, 127, 255, 128, 300, 65535, 70000, 2**31 - 1, 2**31, 2**40 + 3])
        return np.concatenate([x, -x]).astype(source.numpy)
    x = np.array([0, -0.0, 1.5, -1.5, 2.5, 100.9, -100.9, 127])
    if to.numpy.kind == "u":
        x = np.abs(x)
    if to.numpy.kind in "fb":
        x = np.append(x, [1e5, -1e5, np.inf, -np.inf, np.nan, 1e-7, 65519, 65520, 1e300])
    with np.errstate(over="ignore"):
        return x.astype(source.numpy)


@batched
@pytest.mark.parametrize("to", TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("source", TYPES, ids=lambda t: t.name)
def test_numbers(source, to):
    compare("Cast", [_values(source, to)], {"to": int(to)}, rtol=0, atol=0)
    compare("Cast", [np.ones((2, 0), source.numpy)], {"to": int(to)})
    compare("Cast", [np.array(1, source.numpy)], {"to": int(to)})


@pytest.mark.parametrize("source", TYPES, ids=lambda t: t.name)
def test_to_strings(source):
    compare("Cast", [np.array([0, 1, 100, 2.5]).astype(source.numpy)], {"to": int(DType.STRING)})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_to_strings(dtype):
    x = np.array([0.1, 1 / 3, 1e10, 1e-10, 123456789, 1e20, -0.0, np.nan, np.inf, -np.inf, 16777216, 3.14159274])
    compare("Cast", [np.append(x, [1e7, 1e8, 1e9, 0.0001, 0.00001]).astype(dtype)], {"to": int(DType.STRING)})


@pytest.mark.parametrize("to", [t for t in TYPES if t.is_float], ids=lambda t: t.name)
def test_strings_to_floats(to):
    x = np.array(["1", "-2", "3.7", "1e3", "inf", "-INF", "+inf", "NaN", "nan"], object)
    compare("Cast", [x], {"to": int(to)})


@pytest.mark.parametrize("to", [t for t in TYPES if t.numpy.kind in "iu"], ids=lambda t: t.name)
def test_strings_to_integers(to):
    compare("Cast", [np.array(["1", "42"], object)], {"to": int(to)})


def test_same_type_is_no_copy():
    x = np.ones(3, np.float32)
    assert run_kernel("Cast", [x], {"to": 1})[0] is not None
    assert np.shares_memory(run_kernel("Cast", [x], {"to": 1})[0], x)


def _through(x, to, saturate):
    """x cast to a type and back to float32 by onnxruntime."""
    attributes = {} if saturate is None else {"saturate": saturate}
    nodes = [
        helper.make_node("Cast", ["x"], ["m"], to=int(to), **attributes),
        helper.make_node("Cast", ["m"], ["y"], to=1),
    ]
    inputs = [helper.make_tensor_value_info("x", int(DType.of(x.dtype)), x.shape)]
    graph = helper.make_graph(nodes, "cast", inputs, [helper.make_tensor_value_info("y", 1, None)])
    opsets = [helper.make_opsetid("", 22)]
    return unoptimized.run(helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), {"x": x})[0]


def _round_trip(x, to, saturate=True):
    with np.errstate(all="ignore"):
        return convert(convert(x, to, saturate), DType.FLOAT)


@batched
@pytest.mark.parametrize("to", [DType.BFLOAT16, *FLOAT8], ids=lambda t: t.name)
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_small_floats(dtype, saturate, to):
    rng = np.random.default_rng(0)
    scales = [rng.standard_normal(300) * s for s in (100, 1, 1e-3)]
    # 480 and 61440 round out of range; onnxruntime keeps them in it without saturation.
    edges = [0, -0.0, np.inf, -np.inf, np.nan, 448, 449, 464, 465, 57344, 65536, 240, 247, 248, 256, 2**-9, 2**-10]
    with np.errstate(over="ignore"):
        x = np.concatenate([*scales, edges]).astype(dtype)
    want = _through(x, to, saturate if to in FLOAT8 else None)
    assert_same(_round_trip(x, to, bool(saturate)), want, rtol=0, atol=0)


@pytest.mark.parametrize(("to", "beyond"), [(DType.FLOAT8E4M3FN, 480), (DType.FLOAT8E5M2, 61440)])
def test_float8_out_of_range(to, beyond):
    x = np.array([beyond, -beyond], np.float32)
    assert not np.isfinite(_round_trip(x, to, saturate=False)).any()
    assert np.isfinite(_round_trip(x, to, saturate=True)).all()


@pytest.mark.parametrize("to", [DType.INT4, DType.UINT4], ids=lambda t: t.name)
@pytest.mark.parametrize("source", [np.float32, np.uint8, np.int8, np.int32])
def test_four_bit_integers(source, to):
    if source is np.float32:
        x = np.array([0, 1.4, 1.5, 2.5, 3.9, 6.6, 7, 7.4], source)
        x = x if to is DType.UINT4 else np.concatenate([x, -x])
    else:
        info = np.iinfo(source)
        x = np.arange(max(info.min, -500), min(info.max, 500) + 1).astype(source)
    assert_same(_round_trip(x, to), _through(x, to, None), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("mode", "want"),
    [("up", [1, 2, 2, 2, 4, 4, 2.0**-126]), ("down", [1, 1, 1, 1, 2, 2, 2.0**-127]), ("nearest", [1, 1, 2, 2, 2, 4, 2.0**-126])],
)  # fmt: skip
def test_powers_of_two(mode, want):
    x = np.array([1, 1.25, 1.5, 1.75, 2.5, 3, 2.0**-126 * 0.75], np.float32)
    got = convert(convert(x, DType.FLOAT8E8M0, True, mode), DType.FLOAT)
    assert got.tolist() == want


def test_bit_cast_keeps_the_bits():
    x = np.array([[1.0, -2.0, np.inf]], np.float32)
    [codes] = run_kernel("BitCast", [x], {"to": int(DType.INT32)}, opset=26)
    assert codes.tolist() == [[0x3F800000, -0x40000000, 0x7F800000]]
    nibbles = np.array([0, 7, 8, 15]).astype(DType.UINT4.numpy)
    [signed] = run_kernel("BitCast", [nibbles], {"to": int(DType.INT4)}, opset=26)
    assert signed.astype(np.int8).tolist() == [0, 7, -8, -1]


def test_cast_like():
    [got] = run_kernel("CastLike", [np.array([1.9, -1.9], np.float32), np.zeros(0, np.int16)])
    assert_same(got, np.array([1, -1], np.int16))
