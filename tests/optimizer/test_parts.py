"""Parts of a tensor, as `ortconv.optimizer.parts` reads them from Gather, Slice and Split."""

import numpy as np
import pytest

from ortconv.ir.graph import Graph, Ints, Value
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.parts import part_of, slice_of


def ints(graph: Graph, numbers: object) -> Value:
    return graph.constant(Tensor.of(np.array(numbers, np.int64)), "c")


def source() -> tuple[Graph, Value]:
    graph = Graph()
    graph.opsets[""] = 13
    return graph, graph.add_input("x", TensorType(DType.FLOAT, ("n", 4, 6)))


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        (([1], [3], [2]), (2, 1, 3)),
        (([-2], [99], [-1]), (2, 4, 6)),
        (([1], [3], [2], [1]), (2, 1, 3)),
        (([1], [3]), None),  # along the first axis, whose length is unknown
        (([1], [3], [2], [2]), None),
        (([1, 0], [3, 1], [1, 2]), None),
    ],
)
def test_slices_along_one_axis(bounds, found):
    graph, x = source()
    node = graph.add_node("Slice", [x, *(ints(graph, b) for b in bounds)])
    assert part_of(node.out) == (None if found is None else (x, *found))


@pytest.mark.parametrize(("index", "start"), [(0, 0), (3, 3), (-1, 3), (4, None), (-5, None)])
def test_gather_and_squeezed_gather_select_the_same(index, start):
    graph, x = source()
    scalar = graph.add_node("Gather", [x, ints(graph, index)], attrs={"axis": 1})
    kept = TensorType(DType.FLOAT, ("n", 1, 6))
    vector = graph.add_node("Gather", [x, ints(graph, [index])], attrs={"axis": 1}, types=[kept])
    squeeze = graph.add_node("Squeeze", [vector.out, ints(graph, [1])])
    expected = None if start is None else (x, 1, start, start + 1)
    assert slice_of(scalar.out) == slice_of(squeeze.out) == expected


def test_the_output_of_a_split_begins_where_the_ones_before_end():
    graph, x = source()
    types = [TensorType(DType.FLOAT, ("n", 4, size)) for size in (1, 2, 3)]
    split = graph.add_node("Split", [x], 3, {"axis": -1, "split": Ints((1, 2, 3))}, types=types)
    assert [part_of(out) for out in split.outputs] == [(x, 2, 0, 1), (x, 2, 1, 3), (x, 2, 3, 6)]
