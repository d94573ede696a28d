"""Arithmetic of two tensors with broadcasting, and SELECT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FuseCode, Operand
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import OperandType, Tensor
from ortconv.nnapi.operations.arithmetic import activate, by_table, product_scale, requantize, round_half_away, scale_by
from ortconv.nnapi.operations.checks import small
from ortconv.nnapi.operations.shapes import broadcast_ab, elementwise, in_quantization
from ortconv.nnapi.operations.table import Dims, Findings, OperationCall, operation

LEFT_SHIFT = 20  # bits of headroom of quantized sums
SMALL = small("a", "b")

of_two = partial(operation, infer=broadcast_ab, recorded=("a", "b"))
"""Decorator of operations on two tensors that broadcast."""
arithmetic = partial(of_two, checks=(SMALL,), zero_sized=True)
"""Decorator of those with a fused activation."""


def choice(work: Work, mask: Array, x: Array, y: Array) -> Array:
    """Elements of x if the mask is true, else of y. Their type has at most 8 bytes.

    The bits are combined, since np.where has a branch for each element, which processors often predict wrongly.
    """
    bits = np.dtype(f"i{x.itemsize}")
    shape = np.broadcast_shapes(mask.shape, x.shape, y.shape)
    out = work.empty(shape, x.dtype)
    with work.scratch():
        chosen, mixed = work.empty(mask.shape, bits), out.view(bits)
        work.do(np.multiply, mask.view(np.int8), bits.type(-1), chosen)
        work.do(np.bitwise_xor, x.view(bits), y.view(bits), mixed)
        work.do(np.bitwise_and, mixed, chosen, mixed)
        work.do(np.bitwise_xor, mixed, y.view(bits), mixed)
    return out


def quantized_sum(c: OperationCall, sign: int) -> Array:
    """Both sides rescaled to twice the larger scale, added, and rescaled to the output."""
    twice = 2 * max(c.a.scale, c.b.scale)
    a, b = (by_table(x, lambda x: scale_by(x.centered << LEFT_SHIFT, x.scale / twice)) for x in (c.a, c.b))
    return requantize(a + sign * b, twice / ((1 << LEFT_SHIFT) * c.out.scale), c.out, c.activation)


def activated(c: OperationCall, function: Callable[..., Array]) -> Array:
    """A function of both operands, with the fused activation. Integers have none."""
    if c.main is Operand.TENSOR_INT32 and c.activation != FuseCode.NONE:
        raise op_failed(f"TENSOR_INT32 has no fused activation: it is {c.activation}")
    return activate(elementwise(c, function, c.a.array, c.b.array), c.activation, c.work)


@arithmetic("ADD", "a:T b:T activation:i", types="F Q H@3 S@4 I@4")
def add(c: OperationCall) -> Array:
    return c.anew(partial(quantized_sum, sign=1)) if c.out.is_quantized else activated(c, np.add)


@arithmetic("SUB", "a:T b:T activation:i", level=2, types="F Q@3 H@3 S@4 I@4")
def sub(c: OperationCall) -> Array:
    return c.anew(partial(quantized_sum, sign=-1)) if c.out.is_quantized else activated(c, np.subtract)


def coarser_output(c: OperationCall) -> Findings:
    product = product_scale(c.a, c.b)
    if c.out.is_quantized and c.out.scale <= product:
        yield f"the output's scale {c.out.scale:g} must be larger than the product {product:g} of the inputs'"


@arithmetic("MUL", "a:T b:T activation:i", types="F Q H@3 S@4 I@4", checks=(SMALL, coarser_output))
def mul(c: OperationCall) -> Array:
    return c.anew(quantized_product) if c.out.is_quantized else activated(c, np.multiply)


def quantized_product(c: OperationCall) -> Array:
    return requantize(c.a.centered * c.b.centered, product_scale(c.a, c.b) / c.out.scale, c.out, c.activation)


@arithmetic("DIV", "a:T b:T activation:i", level=2, types="F H@3 S@4 I@4")
def div(c: OperationCall) -> Array:
    """Signed 8-bit types pass the type check, but have no arithmetic. Integer division rounds down; division by zero returns 0."""
    if c.out.is_quantized:
        raise op_failed(f"{c.out.type.name} cannot be divided")
    return activated(c, np.floor_divide if c.main is Operand.TENSOR_INT32 else np.divide)


def rounded(x: Tensor, out: OperandType) -> Array:
    """Quantized elements in the quantization of another operand, rounded and clamped."""
    real = x.real.astype(np.float64) / out.scale + out.zero_point
    return np.clip(round_half_away(real), *out.limits).astype(out.type.dtype)


def both(c: OperationCall) -> tuple[Array, Array]:
    """a and b in the quantization of the output."""
    return in_quantization(c, c.a, rounded), in_quantization(c, c.b, rounded)


FUNCTIONS: tuple[tuple[str, str, Callable[..., Array]], ...] = (
    ("MAXIMUM", "F H I Q S@4", np.maximum),
    ("MINIMUM", "F H I Q S@4", np.minimum),
    ("POW", "F H", np.power),
)

for _name, _types, _function in FUNCTIONS:
    of_two(_name, "a:T b:T", level=3, types=_types)(
        lambda c, function=_function: elementwise(c, function, *both(c))  # type: ignore[misc]
    )


@of_two("PRELU", "a:T b:T", level=3, types="F H Q S@4")
def prelu(c: OperationCall) -> Array:
    """Negative elements of a are multiplied by b."""
    if not c.out.is_quantized:
        y, positive = elementwise(c, np.multiply, c.a.array, c.b.array), c.work.empty(c.a.dims, np.bool_)
        c.work.do(np.greater_equal, c.a.array, 0, positive)
        return choice(c.work, positive, c.a.array, y)
    return c.anew(quantized_prelu)


def quantized_prelu(c: OperationCall) -> Array:
    a, b = np.broadcast_arrays(c.a.centered, c.b.centered)
    positive = scale_by(a, float(np.float32(c.a.scale) / np.float32(c.out.scale)))
    negative = scale_by(a * b, product_scale(c.a, c.b) / c.out.scale)
    return np.clip(c.out.zero_point + np.where(a >= 0, positive, negative), *c.out.limits)


def select_dims(c: OperationCall) -> Dims:
    dims: Dims = c.a.dims
    if not c.mask.dims == dims == c.b.dims:
        raise op_failed(f"dimensions differ: {list(c.mask.dims)}, {list(dims)} and {list(c.b.dims)}")
    return dims


@operation("SELECT", "mask:B a:T b:T", level=3, types="F H I Q S@4", infer=select_dims, recorded=("mask", "a", "b"))
def select(c: OperationCall) -> Array:
    return choice(c.work, c.mask.array, *both(c))
