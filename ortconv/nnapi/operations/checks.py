"""Checks that many operations share, made for a row's `checks`. Unknown ranks and dimensions pass."""

from __future__ import annotations

from collections.abc import Iterable

from ortconv.nnapi.codes import FeatureLevel, Operand
from ortconv.nnapi.operand import OperandType, agree
from ortconv.nnapi.operations.table import Advice, Findings, OperationCall, OperationCheck


def _operands(c: OperationCall, names: Iterable[str]) -> list[OperandType]:
    """The operands with these names; for a variadic slot, all of its operands."""
    given = (c.args[name] for name in names)
    return [one for operands in given for one in (operands if isinstance(operands, list) else [operands])]


def rank(name: str, *allowed: int) -> OperationCheck:
    """The rank, if known, must be one of those in `allowed`."""

    def check(c: OperationCall) -> Findings:
        x = c.get(name)
        if x is not None and x.rank and x.rank not in allowed:
            yield f"{name} has rank {x.rank}, not {' or '.join(map(str, allowed))}"

    return check


def small(*names: str) -> OperationCheck:
    """The rank must be 4 at most."""

    def check(c: OperationCall) -> Findings:
        for name in names:
            for x in _operands(c, [name]):
                if x.rank > 4:
                    yield f"{name} has rank {x.rank}; at most 4 is supported"

    return check


SMALL = small("x")


def same_rank(*names: str) -> OperationCheck:
    """Known ranks must be equal."""

    def check(c: OperationCall) -> Findings:
        known = {one.rank for one in _operands(c, names) if one.rank}
        if len(known) > 1:
            yield f"the ranks of {' and '.join(names)} differ: {sorted(known)}"

    return check


def dims_are(name: str, *wanted: int) -> OperationCheck:
    """The rank, and each dimension, must be these if they are known; 0 permits any dimension."""

    def check(c: OperationCall) -> Findings:
        dims = c.args[name].dims
        if not agree(dims, wanted):
            yield f"{name} has dimensions {list(dims)}, not {[dim or '?' for dim in wanted]}"

    return check


def same_quantization(*names: str) -> OperationCheck:
    """Scale and zero point of quantized operands must be equal."""

    def check(c: OperationCall) -> Findings:
        first, *others = _operands(c, names)
        for other in others:
            if first.is_quantized and other.is_quantized and not first.same_quantization(other):
                yield f"quantization differs: {first} and {other}"

    return check


KEPT = same_quantization("x", "out")


def kept_as_advice(c: OperationCall) -> Findings:
    """KEPT as advice, where Android's CPU does not check it."""
    return (Advice(found) for found in KEPT(c))


def output_quantization(scale: float, unsigned: int, signed: int, name: str = "out") -> OperationCheck:
    """A quantized output must have this scale and zero point."""

    def check(c: OperationCall) -> Findings:
        out = c.args[name]
        wanted = {Operand.TENSOR_QUANT8_ASYMM: unsigned, Operand.TENSOR_QUANT8_ASYMM_SIGNED: signed}.get(out.type)
        if wanted is not None and (out.scale != scale or out.zero_point != wanted):
            yield f"{name} must have scale {scale:g} and zero point {wanted}, not {out.scale:g} and {out.zero_point}"

    return check


def other_rank_needs_level_3(*older: int) -> OperationCheck:
    """Ranks of x other than `older`, and unknown ranks, need feature level 3."""

    def check(c: OperationCall) -> Findings:
        if c.x.rank not in older:
            yield FeatureLevel.LEVEL_3

    return check


def offset_needs_level_3(c: OperationCall) -> Findings:
    if c.x.is_quantized and c.x.zero_point:
        yield FeatureLevel.LEVEL_3


BOX_SCALE = 0.125  # of quantized coordinates


def box_quantization(*names: str) -> OperationCheck:
    """Quantized coordinates have a scale of 1/8 and no offset."""

    def check(c: OperationCall) -> Findings:
        for name in names:
            box = c.args[name]
            if box.is_quantized and (box.scale != BOX_SCALE or box.zero_point):
                yield f"{name} must have scale {BOX_SCALE} and zero point 0, not {box.scale:g} and {box.zero_point}"

    return check
