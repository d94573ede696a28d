"""What a run will compute, as far as constants or the shapes of its inputs tell."""

from __future__ import annotations

from collections.abc import Iterable

from ortconv.ir.graph import Node, Value
from ortconv.ir.schema import is_deterministic

_SHAPED_BY_VALUES = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1, 2), "ConstantOfShape": (0,),
    "DFT": (1, 2), "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,), "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4), "OneHot": (1,), "Pad": (1, 3), "Range": (0, 1, 2), "Reshape": (1,),
    "Resize": (1, 2, 3), "STFT": (1, 2, 3), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1, 2),
    "TopK": (1,), "Unsqueeze": (1,), "Upsample": (1,),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
                     "ReduceProd", "ReduceSum", "ReduceSumSquare"), (1,)),
}  # fmt: skip
"""Operators whose output shapes depend on the values of these inputs, and on no others."""

_SHAPED_BY_DATA = frozenset({
    "Compress", "ConcatFromSequence", "If", "ImageDecoder", "Loop", "NonMaxSuppression", "NonZero", "Optional",
    "OptionalGetElement", "OptionalHasElement", "Scan", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
    "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence", "StringNormalizer", "StringSplit", "Unique",
})  # fmt: skip
"""Operators whose output shapes follow from no shape, and those that handle sequences and optionals."""

_DOMAINS = ("", "com.microsoft")


def shape_dataflow(nodes: Iterable[Node], inputs: Iterable[Value]) -> tuple[set[Node], set[Node]]:
    """Of nodes in topological order: those that compute constants, and those whose results follow from the inputs' shapes alone."""
    constant: set[Value] = set()
    known: set[Value] = set()
    shaped: set[Value] = set(inputs)
    folding, following = set(), set()

    def is_constant(v: Value | None) -> bool:
        return v is None or v in constant or (v.const is not None and not v.is_input)

    def is_known(v: Value | None) -> bool:
        return is_constant(v) or v in known

    for node in nodes:
        if node.domain not in _DOMAINS or node.op in _SHAPED_BY_DATA or node.subgraphs or not is_deterministic(node):
            continue
        made = [v for v in node.outputs if v is not None]
        if all(map(is_constant, node.inputs)):
            folding.add(node)
            constant.update(made)
            continue
        if not all(is_known(v) or v in shaped for v in node.inputs):
            continue
        if node.op in ("Shape", "Size") or all(map(is_known, node.inputs)):
            following.add(node)
            known.update(made)
            shaped.update(made)
        elif all(is_known(node.inputs[i]) for i in _SHAPED_BY_VALUES.get(node.op, ()) if i < len(node.inputs)):
            shaped.update(made)
    return folding, following
