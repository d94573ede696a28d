"""Notes on what stands out in a model, with advice."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.files import size
from ortconv.inspection.quantization import ModelQuantization
from ortconv.ir.graph import Graph, Value
from ortconv.ir.model import Model
from ortconv.ir.schema import unknown_operators
from ortconv.ir.symbols import open_dims
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import DType
from ortconv.ortformat.layout import LARGEST_FILE
from ortconv.partition import Target, partition
from ortconv.partition.policy import gate
from ortconv.pipeline.export_notes import Note, export_notes
from ortconv.wording import and_others, counted, fix_dim_options

LARGE_SHARE = 0.4
"""A constant with this share of all constants' bytes stands out."""
SMALL_BYTES = 1 << 16
"""With fewer bytes of constants, no constant stands out."""


def bytes_of(value: Value) -> int:
    """The bytes of a constant as stored."""
    return 0 if value.const is None else value.const.nbytes


def elements_of(value: Value) -> int:
    """The number of elements of a constant; for a sparse one, of those that it stores."""
    const = value.const.values if isinstance(value.const, SparseTensor) else value.const
    return 0 if const is None else const.size


def constants(graph: Graph) -> list[Value]:
    """The constants of a graph and of its subgraphs, the largest first."""
    found = [v for g in graph.graphs() for v in g.initializers.values() if v.const is not None]
    return sorted(found, key=bytes_of, reverse=True)


def notes(model: Model, quantized: ModelQuantization) -> list[Note]:
    graph = model.graph
    return [
        *_shapes(graph),
        *export_notes(graph),
        *_constants(graph),
        *_operators(graph),
        *_quantized(quantized),
        *(Note("repaired", warning) for warning in model.warnings),
    ]


def _shapes(graph: Graph) -> Iterator[Note]:
    dynamic = open_dims(graph.inputs)
    unknown = [v.name for v in graph.inputs if v.shape is None]
    if dynamic or unknown:
        taken = partition(graph, Target("nnapi"), anew=True).taken
        effect = f"NNAPI supports only {taken} of {len(graph)} nodes" if taken else "NNAPI supports no node"
        if dynamic:
            message, advice = f"dynamic {', '.join(dynamic)}", fix_dim_options(dynamic)
        else:
            message = f"input '{unknown[0]}' has an unknown number of dimensions"
            advice = "declare its shape when you export the model"
        yield Note("dynamic-shapes", f"{message}: {effect}", advice)
    for objection in gate(graph, Target("nnapi")):
        yield Note(objection.rule, f"NNAPI supports no node: {objection.message}", objection.advice)


def _constants(graph: Graph) -> Iterator[Note]:
    found = constants(graph)
    total = sum(map(bytes_of, found))
    if total < SMALL_BYTES:
        return
    yield from _largest(found[0], total)
    if total > LARGEST_FILE:
        message = f"{size(total)} of constants do not fit into an .ort file"
        yield Note("too-large", message, "quantize or split the model")
    copies = _copies(found)
    if copies >= SMALL_BYTES:
        yield Note("copies", f"{size(copies)} of constants are copies of others", "ortconv convert shares them")
    unused = [v.name for v in found if not v.is_used]
    if unused:
        yield Note("unused", f"no node reads the constant {and_others(unused)}", "ortconv convert drops it")


def _largest(value: Value, total: int) -> Iterator[Note]:
    """A note on the largest constant if it has a large share of the `total` bytes."""
    share = bytes_of(value) / total
    if share >= LARGE_SHARE:
        readers = ", ".join(dict.fromkeys(node.op for node in value.consumers)) or "nothing"
        advice = "store it as float16 or int8" if value.dtype is not None and value.dtype.bits > 16 else ""
        yield Note("large-constant", f"{share:.0%} of the bytes are '{value.name}', read by {readers}", advice)


def _copies(found: list[Value]) -> int:
    """The bytes of dense constants that are copies of an earlier one."""
    consts = [v.const for v in found if isinstance(v.const, Tensor) and not isinstance(v.const.data, tuple)]
    sizes = [((c.dtype, c.shape, c.digest()), c.nbytes) for c in consts if c.nbytes >= 128]
    return sum(size for _, size in sizes) - sum(dict(sizes).values())


def _operators(graph: Graph) -> Iterator[Note]:
    unknown = unknown_operators(graph)
    if unknown:
        message = f"operators that ONNX Runtime does not have: {', '.join(unknown)}"
        yield Note("custom", message, "give --custom-op-library")
    doubles = [n for n in graph.walk() if any(v.dtype is DType.DOUBLE for v in n.present_outputs[:1])]
    if doubles:
        message = f"{counted(len(doubles), 'node')} in float64, such as {doubles[0].label}"
        yield Note("float64", message, "export in float32: accelerators have no float64, and a CPU is half as fast")


def _quantized(found: ModelQuantization) -> Iterator[Note]:
    if found.form in ("QDQ", "QOperator", "mixed") and found.float_share >= 0.05:
        most = next(iter(found.float_operators), "")
        yield Note(
            "left-in-float",
            f"{found.float_share:.0%} of the multiply-adds are left in float, {found.float_nodes} nodes, most of them {most}",
            "quantize these too; --lint quantization names missing pairs",
        )
