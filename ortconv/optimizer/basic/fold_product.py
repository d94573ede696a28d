"""Rules for constants that follow a product with weights: one scale per column, and biases."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Value
from ortconv.ir.operands import reader_of
from ortconv.ir.tensor import Array
from ortconv.optimizer.basic.fold_conv import PARAMETERS, batch_norm
from ortconv.optimizer.conditions import FLOATS, are_numbers, rounded, rounded_sum, wide
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P, with_factor

_PRODUCT = P("MatMul", "x", C("w"), name="product")
_SUM = P("Add", _PRODUCT, C("b"), commutative=True, name="sum")


@rule("MatMulMulFusion", *(p for product in (_PRODUCT, _SUM) for p in with_factor(product, C("k"))))
def fold_product_mul(m: Match) -> Replacement:
    """(MatMul(x, w) + b) * k  ->  MatMul(x, w * k) + b * k, for one k per column; also / k"""
    scale = _per_column(m, m.k)
    if scale is None:
        return None
    with np.errstate(all="ignore"):
        return _scaled(m, 1 / scale if m.root.op == "Div" else scale)


@rule("MatMulMulFusion", *with_factor(_SUM, C("k", one=True)))
def fold_branch_scale(m: Match) -> Replacement:
    """(MatMul(x, w) + b) * k + z  ->  (MatMul(x, w * k) + b * k) + z, for a number k; also / k"""
    total = reader_of(m.root.out, "Add")
    if total is None or any(v.constant is not None for v in total.present_inputs):
        return None
    if m.tensor("w").rank != 2 or not are_numbers([m.k], m.x.rank):
        return None
    number = wide(m.k).reshape(1)
    with np.errstate(all="ignore"):
        return _scaled(m, np.repeat(1 / number if m.root.op == "Div" else number, m.tensor("w").shape[1]))


_RESIDUAL = P("Mul", P("Add", _SUM, "z", commutative=True), C("k"), commutative=True, name="scaled")


@rule("MatMulMulFusion", P("Add", _RESIDUAL, C("c"), commutative=True))
def fold_residual_mul(m: Match) -> Replacement:
    """(MatMul(x, w) + b + z) * k + c  ->  MatMul(x, w * k) + (b * k + c) + z * k, for one k and one c per column"""
    scale, shift = _per_column(m, m.k), _per_column(m, m.c)
    if scale is None or shift is None:
        return None
    product = _scaled(m, scale, shift)
    if product is None:
        return None
    residual = New("Mul", [m.z, m.k], like=m.node("scaled"))
    return New("Add", [product, residual], like=m.root)


_FLAT = [P(("Flatten", "Reshape"), product, ..., name="flat") for product in (_PRODUCT, _SUM)]


@rule("MatMul_BatchNormalization_Fusion", *(P("BatchNormalization", flat, *PARAMETERS) for flat in _FLAT))
def fold_flattened_batch_norm(m: Match) -> Replacement:
    """BatchNormalization(Flatten(MatMul(x, w)))  ->  Flatten(MatMul(x, w') + b'), for stacks x whose rows are flattened"""
    affine, flat = batch_norm(m.root), m.node("flat")
    if affine is None or m.tensor("w").rank != 2 or (m.x.rank or 0) < 3 or m.w.dtype not in FLOATS:
        return None
    if flat.out.rank != 2 or not len(affine.scale) == flat.out.dim(1) == m.tensor("w").shape[1]:
        return None
    product = _scaled(m, affine.scale, affine.shift)
    return None if product is None else New(flat.op, [product, *flat.inputs[1:]], like=flat, types=[flat.out.type])


@rule("ConstantSumFusion", P("Add", P("Add", "x", C("b"), commutative=True), C("c"), commutative=True))
def fold_constant_sum(m: Match) -> Replacement:
    """(x + b) + c  ->  x + (b + c), for constants of one shape that do not round x"""
    if m.b.dtype not in FLOATS or m.b.shape != m.c.shape:
        return None
    total = rounded_sum(wide(m.b), wide(m.c), m.b.dtype)
    return None if total is None else New("Add", [m.x, total], like=m.root)


def _per_column(m: Match, constant: Value) -> Array | None:
    """A constant with one element for each of several columns of the product, (columns,) in float64; None for any other."""
    weights, shape = m.tensor("w"), constant.shape or ()
    if weights.rank != 2 or weights.dtype not in FLOATS or (m.x.rank or 0) < len(shape) or not shape:
        return None
    columns = weights.shape[1]
    return wide(constant).reshape(-1) if columns > 1 and shape == (1,) * (len(shape) - 1) + (columns,) else None


def _scaled(m: Match, scale: Array, shift: Array | float = 0.0) -> New | None:
    """The product with scaled weights and bias, and another bias added; None if others read the weights, or if not finite."""
    product, dtype = m.node("product"), m.tensor("w").dtype
    bias = _per_column(m, m.b) if "b" in m.bound else np.zeros(len(scale))
    if bias is None or len(m.w.uses) > 1 or m.w.is_output:
        return None
    with np.errstate(all="ignore"):
        weights = rounded(wide(m.w) * scale, dtype)
        added = rounded(bias * scale + shift, dtype)
    if weights is None or added is None:
        return None
    types = [product.out.type]
    scaled = New("MatMul", [m.x, weights], like=product, types=types)
    if not added.any() and "b" not in m.bound:
        return scaled
    return New("Add", [scaled, added], {}, like=m.optional_node("sum") or m.root, types=types)
