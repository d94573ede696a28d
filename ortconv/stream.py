"""Runs a graph for all of its values, in memory that does not grow with the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortconv.ir.footprint import size_of
from ortconv.ir.graph import Graph, Value
from ortconv.runtime.backend import Backend, Region, claims, reference_of, resolve
from ortconv.runtime.placement import last_uses, make_region, place, split
from ortconv.runtime.session import check_feeds

NODES_PER_PIECE = 8
"""Number of nodes that run together; their results are in memory together."""

IN_MEMORY = 256 << 20
"""Bytes of the values of a claimed group that one run returns."""


def stream(
    graph: Graph,
    backends: Sequence[str | Backend],
    feeds: Mapping[str, Any],
    custom_op_library: Path | None = None,
    piece_size: int = NODES_PER_PIECE,
) -> Iterator[tuple[Value, Any]]:
    """Every value that the graph's nodes produce. A value is freed as soon as no node needs it.

    Nodes on numpy run on `numpy:reference`. A group that a backend claims runs as a whole, several times if its values do not fit
    in memory together. A value that the backend never computes, because it fuses operators, is None.
    """
    found = {b.name: reference_of(b) for b in resolve(backends)}
    regions = split(graph, place(graph, list(found.values())), custom_op_library=custom_op_library)
    steps = [
        (found[name], piece)
        for name, region in regions
        for piece in (_observed(region, IN_MEMORY) if claims(found[name]) else _pieces(region, piece_size))
    ]
    values = check_feeds(graph, feeds)
    for (backend, region), dead in zip(steps, last_uses([piece for _, piece in steps]), strict=True):
        with np.errstate(all="ignore"):
            results = backend.compile(region).run([values[v] for v in region.inputs])
        for value, result in zip(region.outputs, results, strict=True):
            values[value] = result
            yield value, result
        for value in dead:
            del values[value]


def _pieces(region: Region, most: int) -> Iterator[Region]:
    """The region in pieces of at most `most` nodes. Each piece returns all values that its nodes produce."""
    for start in range(0, len(region.nodes), most):
        nodes = region.nodes[start : start + most]
        piece = make_region(region.graph, nodes, {v for n in nodes for v in n.present_outputs})
        yield piece._replace(custom_op_library=region.custom_op_library, threads=region.threads)


def _observed(region: Region, most: int) -> Iterator[Region]:
    """Copies of the region that together return all values that its nodes produce. Each returns at most `most` bytes, or a single
    value.
    """
    inner = {v for n in region.nodes for v in n.present_outputs}
    outputs: list[Value] = []
    held = 0
    for value in make_region(region.graph, region.nodes, inner).outputs:
        size = 0 if value.static_shape is None else size_of(value, value.static_shape)
        if outputs and held + size > most:
            yield region._replace(outputs=tuple(outputs), file=None)
            outputs, held = [], 0
        outputs.append(value)
        held += size
    yield region._replace(outputs=tuple(outputs), file=None)
