"""Arithmetic, comparison and logic kernels against onnxruntime."""

import math

import numpy as np
import pytest
from single_node import assert_same, compare, run_kernel, run_onnxruntime

from ortconv.ir.types import DType
from tests.batches import batched

F16, F32, F64, I8, I16, I32, I64 = np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64
U8, U32, U64 = np.uint8, np.uint32, np.uint64
BF16 = DType.BFLOAT16.numpy

REALS = np.array([
    0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3.3, -3.3, 100, -100, 1e-8, 1e-30, 1e30, -1e30, 88.8, -88.8,
    np.inf, -np.inf, np.nan,
])  # fmt: skip
INTEGERS = np.array([0, 1, -1, 2, -2, 3, -3, 7, -7, 100, -100, 127])

UNARY = [
    "Abs", "Neg", "Sign", "Reciprocal", "Ceil", "Floor", "Round", "Sqrt", "Exp", "Log", "Sin", "Cos", "Tan", "Asin",
    "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Erf", "IsNaN", "IsInf",
]  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]
FLOAT32_ONLY = {"Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Erf"}


@batched
@pytest.mark.parametrize(
    ("op", "dtype"), [(op, dtype) for op in UNARY for dtype in (F32, F64) if dtype is F32 or op not in FLOAT32_ONLY]
)
def test_unary(op, dtype):
    x = REALS[np.abs(REALS) < 1e5] if op in ("Sin", "Cos", "Tan") else REALS
    for values in (x, np.array(0.3), np.zeros((2, 0, 3))):
        compare(op, [values.astype(dtype)])


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, dtype) for op in ("Abs", "Sign") for dtype in (I8, I16, I32, I64, U8, U64)]
    + [("Neg", dtype) for dtype in (I8, I32, I64)],
)
def test_unary_integers(op, dtype):
    compare(op, [INTEGERS.astype(dtype)])


@batched
@pytest.mark.parametrize("dtype", [F32, F64, I32, I64])
@pytest.mark.parametrize("op", BINARY)
def test_binary(op, dtype):
    values = (REALS if np.dtype(dtype).kind == "f" else INTEGERS).astype(dtype)
    divisors = values[values != 0] if (op, np.dtype(dtype).kind) == ("Div", "i") else values
    compare(op, [values[:, None], divisors[None]])
    compare(op, [np.array(2, dtype), np.array(3, dtype)])
    compare(op, [np.zeros((0, 3), dtype), np.ones(3, dtype)])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_float16_rounds_once(op):
    a, b = np.random.default_rng(0).standard_normal((2, 1000)).astype(F16)
    compare(op, [a, b], rtol=0, atol=0)


@pytest.mark.parametrize(("op", "function"), [("Add", np.add), ("Mul", np.multiply), ("Div", np.divide)])
def test_bfloat16_rounds_once(op, function):
    a, b = np.random.default_rng(0).standard_normal((2, 1000)).astype(F32).astype(BF16)
    [got] = run_kernel(op, [a, b])
    assert_same(got, function(a.astype(F32), b.astype(F32)).astype(BF16), rtol=0, atol=0)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_variadic(op, count):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(F32) for shape in [(3, 1), (1, 4), ()]]
    compare(op, inputs[:count])


@batched
@pytest.mark.parametrize("exponent", [F32, F64, I32, I64])
@pytest.mark.parametrize("base", [F32, F64, I32, I64])
def test_pow_types(base, exponent):
    x = np.array([[1, 2, 3, 4, 7, 0]], base)
    for y in ([0, 1, 2, 3, 4, 5], 2, [3], 0.5, [[4], [2]]):
        compare("Pow", [x, np.array(y).astype(exponent)])
    compare("Pow", [np.array([1, 2, -1, -1], base), np.array([-1, -2, -3, -2], exponent)])


def test_integer_powers_are_exact():
    [got] = run_kernel("Pow", [np.array([3, -3], I64), np.array([39, 39], I64)])
    assert got.tolist() == [3**39, -(3**39)]


def test_pow_special_values():
    compare("Pow", [REALS.astype(F32)[:, None], REALS.astype(F32)[None]])


def test_integer_division_truncates():
    [got] = run_kernel("Div", [np.array([7, -7, 7, -7, -6], I32), np.array([2, 2, -2, -2, 3], I32)])
    assert got.tolist() == [3, -3, -3, 3, -2]


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", [I8, I16, I32, I64, U8, U32])
def test_integer_mod(dtype, fmod):
    values = INTEGERS.astype(dtype)
    compare("Mod", [values[:, None], values[None, values != 0]], {"fmod": fmod})


@pytest.mark.parametrize("dtype", [F32, F64])
def test_float_fmod(dtype):
    values = REALS.astype(dtype)
    compare("Mod", [values[:, None], values[None]], {"fmod": 1})


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [(5.5, 3, 2.5), (-5.5, 3, 0.5), (5.5, -3, -0.5), (1, math.inf, 1), (-1, math.inf, math.inf), (1, 0, math.nan)],
)
def test_float_mod_has_the_sign_of_the_divisor(a, b, want):
    [got] = run_kernel("Mod", [np.array(a, F32), np.array(b, F32)], opset=13)
    assert_same(got, np.array(want, F32))


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [U8, U32, U64])
def test_bit_shift(dtype, direction):
    compare("BitShift", [np.array([1, 5, 255], dtype), np.array([1, 2, 3], dtype)], {"direction": direction})


def test_signed_bit_shift_extends_the_sign():
    x, by = np.array([-8, -8, 8, -1, 64], I8), np.array([1, 9, 9, -1, 1], I8)
    right, left = (run_kernel("BitShift", [x, by], {"direction": d})[0] for d in ("RIGHT", "LEFT"))
    assert right.tolist() == [-4, -1, 0, -1, 32]
    assert left.tolist() == [-16, 0, 0, 0, -128]


@pytest.mark.parametrize("op", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bitwise(op):
    compare(op, [INTEGERS.astype(I32)[:, None], INTEGERS.astype(I32)])


def test_bitwise_not():
    compare("BitwiseNot", [INTEGERS.astype(I32)])


@pytest.mark.parametrize("op", ["And", "Or", "Xor", "Equal"])
def test_logic(op):
    a, b = np.array([[True], [False]]), np.array([True, False])
    compare(op, [a, b])


def test_not():
    compare("Not", [np.array([True, False])])


def test_equal_strings():
    compare("Equal", [np.array(["a", "b"], object), np.array(["a", "c"], object)])


@batched
@pytest.mark.parametrize("bounds", [(None, None), (1, None), (None, 2), (1, 2), (3, 2)])
@pytest.mark.parametrize("dtype", [F32, F64, F16, I8, I32, I64, U8, U64])
def test_clip(dtype, bounds):
    values = REALS if np.dtype(dtype).kind == "f" else INTEGERS
    with np.errstate(over="ignore"):
        x = values.astype(dtype)
    compare("Clip", [x, *(None if b is None else np.array(b, dtype) for b in bounds)], opset=13)


@pytest.mark.parametrize("attributes", [{}, {"min": -1.0, "max": 1.0}, {"min": 0.0}])
def test_clip_attributes(attributes):
    compare("Clip", [REALS.astype(F32)], attributes, opset=6)


@pytest.mark.parametrize("dtype", [F32, F64, I32, I64, U8, object])
def test_where(dtype):
    x, y = np.array(["a", "b", "c"], object), np.array("z", object)
    if dtype is not object:
        x, y = np.arange(3).astype(dtype), np.array(9, dtype)
    compare("Where", [np.array([[True], [False]]), x, y])


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("negative", [0, 1])
def test_is_inf(negative, positive):
    compare("IsInf", [REALS.astype(F32)], {"detect_negative": negative, "detect_positive": positive})


def test_erf_is_accurate_to_float32():
    x = np.linspace(-6, 6, 100_003).astype(F32)
    [got] = run_kernel("Erf", [x])
    want = np.array([math.erf(v) for v in x.tolist()])
    assert np.abs(got - want).max() < 4e-7
    assert np.abs(got).max() <= 1
    assert_same(got, run_onnxruntime("Erf", [x])[0], rtol=1e-6, atol=1e-7)


def test_erf_of_float64_keeps_its_precision():
    [got] = run_kernel("Erf", [np.array([[0.1, 1.0], [2.0, -3.0]])])
    assert_same(got, np.array([[math.erf(0.1), math.erf(1.0)], [math.erf(2.0), math.erf(-3.0)]]), rtol=1e-15, atol=0)


def test_erf_keeps_the_memory_order_of_its_input():
    x = np.random.default_rng(0).standard_normal((2, 5, 4, 3)).astype(F32).transpose(0, 3, 1, 2)
    [got] = run_kernel("Erf", [x])
    assert got.strides == x.strides
    assert_same(got, run_onnxruntime("Erf", [np.ascontiguousarray(x)])[0])
