"""What a model needs of an .ort file at least, counted before anything is done with it."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.errors import UnsupportedError
from ortconv.ir.graph import Graph, Node
from ortconv.ir.tensor import Tensor
from ortconv.ortformat.layout import LARGEST_FILE, LARGEST_VISITS

MOST_REMOVED = 4
"""The optimizer may leave one table of this number: a model with more than that does not fit in any case."""


def refuse_too_large(graph: Graph, *, optimized: bool = True, narrowed: bool = False) -> None:
    """UnsupportedError for a graph that no .ort file can hold: it has too many tables, or too many bytes of constants.

    `optimized` says that the optimizer may remove some of the tables, `narrowed` that it may store constants in fewer bits.
    """
    tables, limit = least_tables(graph), LARGEST_VISITS * (MOST_REMOVED if optimized else 1)
    if tables > limit:
        raise UnsupportedError(
            f"the model needs at least {tables:,} tables, {tables / LARGEST_VISITS:.1f} times the {LARGEST_VISITS:,} that "
            "onnxruntime loads",
            hint="split the model",
        )
    size = 0 if narrowed else least_bytes(graph)
    if size > LARGEST_FILE:
        raise UnsupportedError(
            f"the weights have {size:,} bytes, {size / LARGEST_FILE:.1f} times the {LARGEST_FILE:,} that onnxruntime loads",
            hint="quantize the weights or store them as float16, or split the model",
        )


def least_tables(graph: Graph) -> int:
    """The tables of the nodes that run: one for a node, one for its edges, one for each attribute, three for each output."""
    return sum(2 + len(node.attrs) + 3 * len(node.outputs) for g in graph.graphs() for node in _running(g))


def least_bytes(graph: Graph) -> int:
    """The bytes of the constants that nodes read when they run. Equal ones count once."""
    values = {v for g in graph.graphs() for node in _running(g) for v in node.inputs if v is not None}
    consts = [v.const for v in values if isinstance(v.const, Tensor)]
    if sum(const.nbytes for const in consts) <= LARGEST_FILE:
        return sum(const.nbytes for const in consts)
    return sum({(const.dtype, const.shape, const.digest()): const.nbytes for const in consts}.values())


def _running(graph: Graph) -> Iterator[Node]:
    """The nodes of one graph that a run needs, last ones first: something reads them, and they read more than constants."""
    unread: set[Node] = set()
    for node in reversed(graph):
        made = [v for v in node.outputs if v is not None]
        if all(not v.is_output and all(user in unread for user, _ in v.uses) for v in made):
            unread.add(node)
        elif any(v is not None and v.constant is None for v in node.inputs):
            yield node
