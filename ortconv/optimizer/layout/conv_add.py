"""Conv followed by the addition of a tensor of its shape becomes com.microsoft:FusedConv with a fourth input."""

from __future__ import annotations

from ortconv.ir.graph import Node, Value
from ortconv.ir.types import Shape
from ortconv.optimizer.engine import New, Replacement, RulePass, rule
from ortconv.optimizer.extended.fuse_conv import ACTIVATION_PARAMETERS, activation_attributes, is_float
from ortconv.optimizer.pattern import C, Match, P


@rule("ConvAddActivationFusion", P("Add", P("Conv", ..., name="conv"), "z", commutative=True))
def fuse_conv_add(m: Match) -> Replacement:
    """Conv(x, w, b) + z  ->  FusedConv(x, w, b, z)

    Counterpart: ConvAddActivationFusion
    Differs: a Conv without bias as well.
    """
    x, w, b = (m.conv.input(slot) for slot in range(3))
    if m.z is m.conv.out or not is_float(x) or not _same_shape(m.conv, m.z):
        return None
    m.graph.opsets.setdefault("com.microsoft", 1)
    return New("FusedConv", [x, w, b, m.z], domain="com.microsoft", types=[m.root.out.type], like=m.conv)


_FUSED = P("FusedConv", ..., name="conv", domain="com.microsoft", where=lambda conv: "activation" not in conv.attrs)


@rule(
    "ConvAddActivationFusion",
    P(tuple(ACTIVATION_PARAMETERS), _FUSED),
    P("Clip", _FUSED, C("low", optional=True), C("high", optional=True)),
)
def fuse_activation(m: Match) -> Replacement:
    "act(FusedConv(x, w, b, z))  ->  FusedConv<act>(x, w, b, z)"
    attrs = activation_attributes(m.root)
    if attrs is None:
        return None
    return New(
        "FusedConv",
        m.conv.inputs,
        {**m.conv.attrs, **attrs},
        domain="com.microsoft",
        types=[m.root.out.type],
        like=m.conv,
    )


def _same_shape(conv: Node, z: Value) -> bool:
    """True if both have rank 4 and dimension by dimension the same number or symbol."""
    shape = _output_shape(conv)
    return shape is not None and len(shape) == 4 and None not in shape and shape == z.shape


def _output_shape(conv: Node) -> Shape | None:
    """The shape of a Conv's output, where inference loses the symbol of an axis whose size the window keeps."""
    shape, x, w = conv.out.shape, conv.inputs[0], conv.inputs[1]
    if shape is None or x is None or w is None or x.rank != len(shape) or w.rank != len(shape):
        return shape
    spatial = len(shape) - 2
    pads = conv.attr("pads", (0,) * 2 * spatial)
    strides, dilations = conv.attr("strides", (1,) * spatial), conv.attr("dilations", (1,) * spatial)
    auto_pad = conv.attr("auto_pad", "NOTSET")
    dims = list(shape)
    for axis in range(spatial):
        kernel = w.dim(axis + 2)
        if isinstance(dims[axis + 2], int) or not isinstance(kernel, int) or strides[axis] != 1:
            continue
        padded = 0 if auto_pad == "VALID" else pads[axis] + pads[axis + spatial]
        if auto_pad.startswith("SAME") or padded == (kernel - 1) * dilations[axis]:
            dims[axis + 2] = x.dim(axis + 2)
    return tuple(dims)


PASSES = (RulePass("ConvAddActivationFusion", fuse_conv_add, fuse_activation),)
