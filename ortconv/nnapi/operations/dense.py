"""Matrix products: FULLY_CONNECTED, BATCH_MATMUL."""

from __future__ import annotations

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import Tensor
from ortconv.nnapi.operations.arithmetic import activate, exact_float, product_scale, requantize
from ortconv.nnapi.operations.checks import rank, same_rank
from ortconv.nnapi.operations.convolution import bias_scale, fine_output
from ortconv.nnapi.operations.shapes import broadcast, elementwise
from ortconv.nnapi.operations.table import Dims, Findings, OperationCall, operation


def rows_and_units(c: OperationCall) -> Findings:
    """The number of input elements, if known, must be a multiple of the filter's row length; there must be one bias per unit."""
    if not (c.x.rank and c.filter.rank and c.bias.rank):
        return
    units, size = c.filter.dims
    if size and c.x.size % size:
        yield f"{c.x.size} elements do not divide into rows of {size}"
    if units and c.bias.size and c.bias.size != units:
        yield f"{c.bias.size} biases for {units} units"


def fully_connected_dims(c: OperationCall) -> Dims:
    units, size = c.filter.dims
    if c.bias.dims != (units,) or units == 0:
        raise op_failed(f"the bias has dimensions {list(c.bias.dims)} for {units} units")
    if size == 0 or c.x.size % size or not 2 <= c.x.rank <= 4:
        raise op_failed(f"an input of {list(c.x.dims)} does not divide into rows of {size}")
    return c.x.size // size, units


@operation(
    "FULLY_CONNECTED", "x:T filter:T bias:bias activation:i", types="F Q H@3 S@4", infer=fully_connected_dims,
    checks=(rank("x", 2, 3, 4), rank("filter", 2), rank("bias", 1), rows_and_units, fine_output),
    quantization=(bias_scale,), zero_sized=True, recorded=("x", "filter", "bias"),
)  # fmt: skip
def fully_connected(c: OperationCall) -> Array:
    """Rows of the flattened input times the filter [units, size], transposed."""
    size = c.filter.dims[1]
    if not c.out.is_quantized:
        y = elementwise(c, np.matmul, c.x.array.reshape(-1, size), c.filter.array.T)
        c.work.do(np.add, y, c.bias.array, y)
        return activate(y, c.activation, c.work)
    return c.anew(quantized_rows)


def quantized_rows(c: OperationCall) -> Array:
    size = c.filter.dims[1]
    x, filter = exact_float(c.x.centered.reshape(-1, size), size), c.filter.derived(exact_weights, size)
    scale = product_scale(c.x, c.filter) / c.out.scale
    return requantize(x @ filter.T, scale, c.out, c.activation, c.bias.array)


def exact_weights(filter: Tensor, size: int) -> Array:
    return exact_float(filter.centered, size)


def batch_matmul_dims(c: OperationCall) -> Dims:
    a, b = (_turned_dims(x.dims, turn) for x, turn in ((c.a, c.adjoint_a), (c.b, c.adjoint_b)))
    if a[-1] != b[-2]:
        raise op_failed(f"matrices of {list(a[-2:])} and {list(b[-2:])} cannot be multiplied")
    return *broadcast(a[:-2], b[:-2]), a[-2], b[-1]


def _turned_dims(dims: Dims, turn: bool) -> Dims:
    return (*dims[:-2], dims[-1], dims[-2]) if turn else dims


@operation(
    "BATCH_MATMUL", "a:T b:T adjoint_a:b adjoint_b:b", level=6, types="F H S I", infer=batch_matmul_dims,
    checks=(rank("a", 2, 3, 4), rank("b", 2, 3, 4), same_rank("a", "b")), recorded=("a", "b"),
)  # fmt: skip
def batch_matmul(c: OperationCall) -> Array:
    if c.out.is_quantized:
        return c.anew(quantized_matmul)
    return elementwise(c, np.matmul, *turned(c, c.a.array, c.b.array))


def turned(c: OperationCall, a: Array, b: Array) -> tuple[Array, Array]:
    return np.swapaxes(a, -1, -2) if c.adjoint_a else a, np.swapaxes(b, -1, -2) if c.adjoint_b else b


def quantized_matmul(c: OperationCall) -> Array:
    a, b = turned(c, c.a.centered, c.b.centered)
    sums = exact_float(a, a.shape[-1]) @ exact_float(b, a.shape[-1])
    return requantize(sums, product_scale(c.a, c.b) / c.out.scale, c.out)
