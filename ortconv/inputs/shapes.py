"""The shapes of all values for given sizes of free dimensions: as declared, or as onnx infers them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ortconv.inputs.demands import Numbers
from ortconv.inputs.problem import Problem
from ortconv.ir.graph import Graph, Value
from ortconv.runtime.deadline import check_limit


def infer_shapes(problem: Problem, sizes: Mapping[str, int]) -> dict[Value, Numbers]:
    """The shapes of all values that are determined by these sizes. Raises TimeLimitError at the end of the search time."""
    check_limit()
    fed = {v: problem.shape(v, sizes) for v in problem.made if v in problem.shapes}
    if not sizes:
        graphs = problem.graph.graphs()
        values = (v for g in graphs for v in (*g.inputs, *g.initializers.values(), *made_by(g)))
        return {**_declared_shapes(values), **fed}
    from ortconv.inputs.shape_inference import inferred_shapes

    found = inferred_shapes(problem, sizes, fed)
    if problem.observe is not None:
        found.update(problem.observe(dict(sizes), found))
    return found


def shapes_of_any_run(graph: Graph) -> dict[Value, Numbers]:
    """The shapes and dimensions that are the same with all inputs."""
    from ortconv.inputs.shape_inference import inferred_shapes

    return inferred_shapes(Problem(graph, []), {}, _declared_shapes(graph.inputs))


def _declared_shapes(values: Iterable[Value]) -> dict[Value, Numbers]:
    return {v: shape for v in values if (shape := shape_with(v, {})) is not None}


def made_by(graph: Graph) -> Iterator[Value]:
    """The values that the nodes of a graph make."""
    return (v for node in graph for v in node.present_outputs)


def shape_with(value: Value, sizes: Mapping[str, int]) -> Numbers | None:
    """The shape of a value, with sizes in place of symbols; None if its rank is not known."""
    if value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else None if d is None else sizes.get(d) for d in value.shape)
