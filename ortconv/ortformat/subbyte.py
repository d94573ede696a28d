"""Gives constants of 2 and 4 bits a form that an .ort file can hold: the format has no numbers for their element types."""

from __future__ import annotations

import numpy as np

from ortconv.ir.casts import add_cast
from ortconv.ir.graph import Node, Value
from ortconv.ir.kernels import TENSORS, KernelUse, first_release, use_of
from ortconv.ir.model import Model
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import schema
from ortconv.ir.tensor import Tensor, two_per_byte
from ortconv.ir.types import DType

WIDE: dict[DType | None, DType] = {
    DType.INT4: DType.INT8, DType.UINT4: DType.UINT8, DType.INT2: DType.INT8, DType.UINT2: DType.UINT8,
}  # fmt: skip
"""Types of one byte that hold the numbers of narrower types."""

OFFSETS: dict[DType | None, int] = {DType.INT4: 8, DType.UINT4: 0}
"""What a number lacks to its code in the packed form of GatherBlockQuantized, whose default zero point is 8."""


def widen_constants(model: Model) -> None:
    """Give constants of 2 and 4 bits a form that can be stored, in subgraphs too.

    DequantizeLinear computes the same from integers of 8 bits, and GatherBlockQuantized from two codes per byte. Other nodes read
    a Cast of integers of 8 bits. They stay as they are if their operator set has no such Cast.
    """
    made: dict[Value, Value] = {}
    for node in narrow_readers(model):
        if _packs(node):
            _pack(node)
        elif _dequantizes(node) or _cast_use(node) is not None:
            for slot, value in _narrow(node).items():
                node.parent.set_input(node, slot, _widened(node, value, made))


def narrow_readers(model: Model) -> list[Node]:
    """The nodes that read constants of 2 or 4 bits."""
    return [node for node in model.graph.walk() if _narrow(node)]


def first_release_of_stored(node: Node) -> int:
    """The first release that runs the form in which the node's constants of 2 and 4 bits are stored; the oldest if it has none."""
    if not _narrow(node) or _dequantizes(node):
        return 0
    use = _packed_use(node) if _packs(node) else _cast_use(node)
    return (0 if use is None else first_release(use)) or 0


def _narrow(node: Node) -> dict[int, Value]:
    """The constants of 2 or 4 bits that a node reads, by slot."""
    return {i: v for i, v in enumerate(node.inputs) if v is not None and v.dtype in WIDE and v.constant is not None}


def _dequantizes(node: Node) -> bool:
    """True for a DequantizeLinear whose integers are all constant."""
    return node.op == "DequantizeLinear" and len(_narrow(node)) == sum(v.dtype in WIDE for v in node.present_inputs)


def _packs(node: Node) -> bool:
    """True if the kernel of GatherBlockQuantized takes the integers of a node as two codes per byte."""
    if not node.is_op("GatherBlockQuantized", MICROSOFT):
        return False
    narrow, scales, zero_point = _narrow(node), node.input(2), node.input(3)
    if 0 not in narrow or narrow[0].dtype not in OFFSETS or (zero_point is not None and 3 not in narrow):
        return False
    shape, axis = narrow[0].static_shape or (), node.attr("quantize_axis", 1)
    if not shape or shape[-1] % 2 or node.attr("gather_axis", 0) != 0 or axis not in (-1, len(shape) - 1):
        return False
    return scales is not None and bool(scales.static_shape)


def _packed_use(node: Node) -> KernelUse | None:
    use, byte = use_of(node), TENSORS[DType.UINT8]
    if use is None:
        return None
    return use._replace(inputs=tuple([byte if i in _narrow(node) else t for i, t in enumerate(use.inputs)]))


def _cast_use(node: Node) -> KernelUse | None:
    """The use of Cast that makes a node's constants from integers of 8 bits; None if there is no operator or kernel for it."""
    cast, dtype = schema("", "Cast", node.parent.opset()), next(iter(_narrow(node).values())).dtype
    if cast is None or dtype is None or TENSORS[dtype] not in cast.allowed["T2"]:
        return None
    use = KernelUse(cast, (TENSORS[WIDE[dtype]],), (TENSORS[dtype],), {}, ())
    return None if first_release(use) is None else use


def _widened(node: Node, value: Value, made: dict[Value, Value]) -> Value:
    """The form in which a node reads a narrow constant: integers of 8 bits, which nodes in the same graph share, or a Cast of
    these.
    """
    const, wide = value.constant, made.get(value)
    assert const is not None
    if wide is None or wide.graph is not node.graph:
        dtype = WIDE[const.dtype]
        content = Tensor.of(const.numpy().astype(dtype.numpy))
        made[value] = wide = node.parent.constant(content, f"{value.name}_{dtype.name.lower()}")
    return wide if _dequantizes(node) else add_cast(node.parent, wide, const.dtype, node)


def _pack(node: Node) -> None:
    """Let a GatherBlockQuantized read two codes per byte. The default zero point of uint4, 0, becomes explicit."""
    graph, narrow, scales = node.parent, _narrow(node), node.inputs[2]
    offset = OFFSETS[narrow[0].dtype]
    for slot, value in narrow.items():
        assert value.constant is not None
        codes = (value.constant.numpy().astype(np.int8) + offset).astype(np.uint8)
        graph.set_input(node, slot, graph.constant(Tensor.of(two_per_byte(codes)), f"{value.name}_codes"))
    if 3 not in narrow and not offset:
        assert scales is not None
        zeros = np.zeros(scales.static_shape or (), np.uint8)
        zero_points = graph.constant(Tensor.of(two_per_byte(zeros)), f"{narrow[0].name}_zero_points")
        graph.set_inputs(node, [*node.inputs[:3], zero_points])
