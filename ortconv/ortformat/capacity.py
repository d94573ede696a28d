"""Lower bounds of a model's size in an .ort file. They refuse a model that cannot fit before any work is done on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortconv.errors import UnsupportedError
from ortconv.ir.graph import Graph
from ortconv.ir.tensor import Tensor
from ortconv.onnxio.messages import subgraphs, walk
from ortconv.ortformat.layout import LARGEST_FILE, LARGEST_VISITS

if TYPE_CHECKING:
    from ortconv.onnxproto import GraphProto

MANY = 20_000
"""Graphs with fewer nodes are not counted here."""

MOST_REMOVED = 4
"""The optimizer may reduce the number of tables by up to this factor; a model with more is refused in any case."""


def refuse_many_tables(graph: GraphProto, *, optimized: bool) -> None:
    """Raise UnsupportedError for a graph with more tables than onnxruntime loads. With `optimized`, the limit allows for tables
    that the optimizer may remove.
    """
    if len(graph.node) < MANY:
        return
    tables = least_tables(graph)
    if tables > LARGEST_VISITS * (MOST_REMOVED if optimized else 1):
        raise UnsupportedError(
            f"the model needs at least {tables:,} tables, {tables / LARGEST_VISITS:.1f} times the {LARGEST_VISITS:,} that "
            "onnxruntime loads",
            hint="split the model",
        )


def least_tables(graph: GraphProto) -> int:
    """Number of tables for the nodes that the outputs depend on: one for a node, one for its edges, one for each attribute, three
    for each output.
    """
    needed = {value.name for value in graph.output}
    found = 0
    for node in reversed(graph.node):
        if needed.isdisjoint(node.output):
            continue
        needed.update(node.input)
        if node.op_type != "Constant":
            found += 2 + len(node.attribute) + 3 * len(node.output)
        for body in subgraphs(node):
            needed.update(name for inner in walk(body.node) for name in inner.input)
            found += least_tables(body)
    return found


def refuse_many_bytes(graph: Graph) -> None:
    """Raise UnsupportedError for a graph whose nodes read more bytes of constants than onnxruntime loads."""
    size = least_bytes(graph)
    if size > LARGEST_FILE:
        raise too_large(size, "onnxruntime loads")


def too_large(size: int, holder: str) -> UnsupportedError:
    """The error for weights beyond the limit of 2 GiB, which .ort files and messages of protobuf share."""
    return UnsupportedError(
        f"the weights have {size:,} bytes, {size / LARGEST_FILE:.1f} times the {LARGEST_FILE:,} that {holder}",
        hint="quantize the weights or store them as float16, or split the model",
    )


def least_bytes(graph: Graph) -> int:
    """Bytes of the constants read by nodes that also read other values. Equal constants count once."""
    reads = (node.present_inputs for node in graph.walk())
    values = {v for inputs in reads if any(v.constant is None for v in inputs) for v in inputs}
    consts = [v.const for v in values if isinstance(v.const, Tensor)]
    size = sum(const.nbytes for const in consts)
    if size <= LARGEST_FILE:
        return size
    return sum({(const.dtype, const.shape, const.digest()): const.nbytes for const in consts}.values())
