"""The table of facts about operators: complete, and true of the kernels."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from node_cases import node_cases
from onnx import parser

from ortconv.compare.tolerance import _step
from ortconv.executor import kernels
from ortconv.executor.constants import shape_dataflow
from ortconv.executor.kernels import registry
from ortconv.ir.operators import _TABLE, MICROSOFT, Trait, named, traits
from ortconv.ir.schema import operators, schema
from ortconv.ir.types import DType, TensorType
from ortconv.onnxio.infer import declared_type
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.basic.cse import merge_common
from ortconv.optimizer.basic.qdq import MOVES_DATA
from ortconv.optimizer.engine import Context
from ortconv.optimizer.extended.qdq.drop import MOVERS
from ortconv.partition.units import SELECTORS
from tests.batches import batched

RNG = np.random.default_rng(5)
SETTINGS: dict[str, dict[str, Any]] = {
    "BitCast": {"to": onnx.TensorProto.INT32}, "Cast": {"to": onnx.TensorProto.DOUBLE}, "RegexFullMatch": {"pattern": "[ab]+"},
    "ParametricSoftplus": {"alpha": 0.5, "beta": 2.0}, "ScaledTanh": {"alpha": 0.5, "beta": 2.0},
}  # fmt: skip
LEFT = {"BitShift": {"direction": "LEFT"}}


def _known() -> set[tuple[str, str]]:
    return {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}


def _function(op: str, domain: str = "") -> Callable[..., Any]:
    found = schema(domain, op, 26 if domain == "" else 1)
    assert found is not None
    kernel = registry.lookup(domain, op, found.since)
    assert kernel is not None
    return kernel.reference


def _operand(op: str, slot: int = 0) -> Any:
    """Random numbers or strings of a type that the input may have."""
    found = schema("", op, 26)
    assert found is not None
    formal = found.formal_input(slot)
    assert formal is not None
    types = found.allowed.get(formal.type, {formal.type})
    if "tensor(float)" in types:
        return RNG.normal(size=(3, 4)).astype(np.float32)
    if "tensor(uint8)" in types:
        return RNG.integers(0, 6, (3, 4)).astype(np.uint8)
    return (
        RNG.random((3, 4)) < 0.5
        if "tensor(bool)" in types
        else RNG.choice(np.array(["a", "b", "zebra"], object), (3, 4))
    )


def _nodes(body: str, opset: int = 21) -> Any:
    imports = f'<ir_version: 9, opset_import: ["": {opset}, "com.microsoft": 1]>'
    return from_proto(parser.parse_model(f"{imports} {body}")).graph


# ---------------------------------------------------------------------- complete


def test_every_operator_of_onnx_has_a_row() -> None:
    assert {op for domain, op in _known() if domain == ""} - {op for domain, op in _TABLE if domain == ""} == set()


def _computed() -> set[tuple[str, str]]:
    for module in pkgutil.iter_modules(kernels.__path__):
        importlib.import_module(f"{kernels.__name__}.{module.name}")
    return {key for key in registry._kernels if key[0] in ("", MICROSOFT)}


def test_every_kernel_has_a_row() -> None:
    assert _computed() - _TABLE.keys() == set()


def test_every_row_names_an_operator() -> None:
    known = _known() | _computed() | {(MICROSOFT, op) for op in operators(MICROSOFT)}
    assert _TABLE.keys() - known == set()


def test_every_input_that_shapes_exists() -> None:
    for (domain, op), row in _TABLE.items():
        formal = [s for s in (schema(domain, op, v) for v in range(1, 27)) if s is not None]
        slots = [*row.shaped_by, *(() if row.random_if is None else (row.random_if,))]
        assert all(any(s.formal_input(slot) for s in formal) for slot in slots), op


def test_scales_and_zero_points_stand_behind_quantized_inputs() -> None:
    for (domain, op), row in _TABLE.items():
        found = schema(domain, op, 21 if domain == "" else 1)
        names = [] if found is None else [formal.name.lower() for formal in found.inputs]
        for slot in range(row.quantized):
            assert "scale" in names[3 * slot + 1], op
            assert "zero" in names[3 * slot + 2], op
        if row.quantized:
            assert "scale" in names[3 * row.quantized], op
            assert "zero" in names[3 * row.quantized + 1], op


def test_facts_that_follow_from_others_stand_beside_them() -> None:
    assert set(named(Trait.ORDERED)) <= set(named(Trait.MOVES))
    assert not set(named(Trait.ELEMENTWISE)) & set(named(Trait.BROADCASTS, Trait.REDUCES))
    assert set(named(Trait.REDUCES)) == {op for op in named(*Trait) if op.startswith("Reduce")}


def test_exceptions_must_have_the_trait() -> None:
    assert "Conv" not in named(Trait.SUMS, but=("Conv",))
    with pytest.raises(AssertionError, match="Relu"):
        named(Trait.SUMS, but=("Relu",))


# ---------------------------------------------------------------------- true of the kernels


@batched
@pytest.mark.parametrize("op", named(Trait.ELEMENTWISE))
def test_elementwise_operators_compute_each_element_alone(op: str) -> None:
    x = _operand(op)
    others = [np.zeros((), np.float64)] if op == "CastLike" else []
    places = RNG.permutation(x.size)
    function, settings = _function(op), SETTINGS.get(op, {})
    with np.errstate(all="ignore"):
        whole = np.asarray(function(x, *others, **settings))
        moved = np.asarray(function(x.reshape(-1)[places].reshape(4, 3), *others, **settings))
    assert whole.shape == x.shape
    np.testing.assert_array_equal(moved, whole.reshape(-1)[places].reshape(4, 3))


@batched
@pytest.mark.parametrize("op", named(Trait.BROADCASTS))
def test_broadcasting_operators_compute_each_element_alone(op: str) -> None:
    operands = [_operand(op, slot) for slot in range(3 if op == "Where" else 2)]
    operands[-1] = operands[-1][:1]
    function, settings = _function(op), LEFT.get(op, {})
    with np.errstate(all="ignore"):
        whole = np.asarray(function(*operands, **settings))
        rows = [np.asarray(function(*(x[min(i, len(x) - 1)] for x in operands), **settings)) for i in range(3)]
    np.testing.assert_array_equal(whole, np.stack(rows))


@pytest.mark.parametrize("op", named(Trait.COMMUTATIVE))
def test_commutative_operators(op: str) -> None:
    a, b = _operand(op), _operand(op)
    np.testing.assert_array_equal(_function(op)(a, b), _function(op)(b, a))


@pytest.mark.parametrize("op", named(Trait.NONNEGATIVE))
def test_nonnegative_operators(op: str) -> None:
    with np.errstate(all="ignore"):
        assert not (np.asarray(_function(op)(_operand(op))) < 0).any()


def _elements(*arrays: Any) -> set[str]:
    return {repr(element) for array in arrays for element in array.reshape(-1).tolist()}


def _is_broadcast(x: list[Any], y: list[Any]) -> bool:
    return y[0].shape == np.broadcast_shapes(*(v.shape for v in x if v is not None))


CLAIMS: dict[Trait, Callable[[list[Any], list[Any]], bool]] = {
    Trait.ELEMENTWISE: lambda x, y: bool(y[0].shape == x[0].shape),
    Trait.KEEPS_SHAPE: lambda x, y: bool(y[0].shape == x[0].shape),
    Trait.BROADCASTS: _is_broadcast,
    Trait.MOVES: lambda x, y: _elements(*y) <= _elements(x[0]),
    Trait.ORDERED: lambda x, y: bool(y[0].tobytes() == x[0].tobytes()),
    Trait.PICKS: lambda x, y: _elements(y[0]) <= _elements(x[0]) or 0 in x[0].shape,
    Trait.JOINS: lambda x, y: _elements(y[0]) <= _elements(*x),
    Trait.NONNEGATIVE: lambda x, y: not bool((y[0] < 0).any()),
}
"""What each fact says of the inputs and the outputs of a node."""


@pytest.mark.slow
def test_facts_hold_in_the_cases_of_onnx() -> None:
    seen: set[Trait] = set()
    for case in node_cases():
        node = case.model.graph.node[0]
        given = dict(zip((v.name for v in case.model.graph.input), case.data_sets[0][0], strict=False))
        x, y = [given.get(name) for name in node.input], case.data_sets[0][1]
        alone = len(case.model.graph.node) == 1 and not node.domain
        if (
            not alone
            or not x
            or x[0] is None
            or not all(v is None or isinstance(v, (np.ndarray, np.generic)) for v in (*x, *y))
        ):
            continue
        row = _TABLE[node.domain, node.op_type]
        for trait in row.flags & CLAIMS.keys():
            seen.add(trait)
            assert CLAIMS[trait](x, y), f"{case.name} {trait}"
    assert seen == CLAIMS.keys()


# ---------------------------------------------------------------------- lists of ONNX Runtime's own


def test_lists_that_follow_onnx_runtime_name_operators_of_the_kind() -> None:
    moving = set(named(Trait.MOVES, Trait.PICKS))
    assert set(MOVES_DATA) <= moving
    assert set(MOVERS) - moving == {"Resize"}, "Resize moves elements in its mode nearest alone"


def test_units_are_grouped_around_the_same_operators() -> None:
    assert {op for selector in SELECTORS for op in selector.ops} == set(named(Trait.QDQ, Trait.DQ))


# ---------------------------------------------------------------------- what follows from rows


@pytest.mark.parametrize("op", ["Sum", "Mean"])
def test_sums_of_two_are_one_in_either_order(op: str) -> None:
    graph = _nodes(f"g (float[2] a, float[2] b) => (float[2] y) {{ c = {op}(a, b) d = {op}(b, a) y = Mul(c, d) }}")
    assert merge_common(graph, Context()) == 1


def test_a_type_is_that_of_the_input_of_the_same_type() -> None:
    graph = _nodes("g (bool[2] c, float16[2] a, float16[2] b) => (y, z) { y = Where(c, a, b) z = Less(a, b) }")
    where, less = graph
    for node in (where, less):
        node.out.type = None
    assert declared_type(where, 0) == TensorType(DType.FLOAT16)
    assert declared_type(less, 0) == TensorType(DType.BOOL)


def test_the_cache_of_group_query_attention_is_as_long_as_its_input_says() -> None:
    graph = _nodes(
        """g (float[1,1,8] q, float[1,1,8] k, float[1,1,8] v, int32[1] lengths, int32[1] total) => (y, int64[4] s) {
            y, keys, values = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (q, k, v, , , lengths, total)
            s = Shape(keys)
        }"""
    )
    assert shape_dataflow(graph, graph.inputs) == (set(), set())


def test_operators_without_a_row_foretell_nothing() -> None:
    graph = _nodes("g (float[2] x) => (int64[2] s) { y = com.microsoft.SampleOp(x) s = Shape(y) }")
    assert traits(next(iter(graph))).has(Trait.SHAPED_BY_DATA)
    assert shape_dataflow(graph, graph.inputs) == (set(), set())


@pytest.mark.parametrize(
    ("moved", "step"),
    [("y = Tile(d, two)", 0.5), ("y, i = MaxPool<kernel_shape = [1]>(d)", 0.5), ("v, y = TopK(d, one)", None)],
)
def test_steps_of_values_behind_operators_that_move_them(moved: str, step: float | None) -> None:
    quantized = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
    constants = "float s = {0.5}, uint8 z = {0}, int64[3] two = {1, 1, 2}, int64[1] one = {1}"
    graph = _nodes(f"g (float[1,2,3] x) => (y) <{constants}> {{ {quantized} {moved} }}")
    assert _step(graph.outputs[0]) == step
