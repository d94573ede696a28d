"""What may differ grows with the sums behind a value and with the coarseness of its type."""

from __future__ import annotations

import onnx.parser
import pytest

from ortconv.compare.tolerance import QUANTIZED_LIMIT, Allowance, limit, most_ties, tolerances
from ortconv.ir.types import DType
from ortconv.onnxio.load import from_proto

FLOAT_EPSILON = 2.0**-23
NBITS = "y = com.microsoft.MatMulNBits<K=64, N=3, block_size=16, accuracy_level={}>(x, q, s)"


def graph(body: str, consts: str = ""):
    text = f'<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g (float[2,4] x) => (y) {consts} {{ {body} }}'
    return from_proto(onnx.parser.parse_model(text)).graph


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Relu(x)", 8 * FLOAT_EPSILON),
        ("y = MatMul(x, w)", FLOAT_EPSILON * 2 * 10),
        ("t = MatMul(x, w) y = ReduceSum(t)", FLOAT_EPSILON * 8 * (8 + 2 * 2**0.5)),
        ("t = Cast<to=10>(x) y = Relu(t)", 4 * 2.0**-10),
        ("t = Cast<to=16>(x) u = Transpose(t) y = MatMul(t, u)", 5 * 2.0**-7),
        ("t = Cast<to=17>(x) y = Cast<to=1>(t)", 2.0**-3),
        ("y = QuantizeLinear(x, s, z)", QUANTIZED_LIMIT),
        ("y = com.microsoft.DynamicQuantizeMatMul(x, q, s)", QUANTIZED_LIMIT),
        (NBITS.format(4), QUANTIZED_LIMIT),
        (NBITS.format(1), 8 * 10 * FLOAT_EPSILON),
    ],
)
def test_limits(body: str, expected: float) -> None:
    found = graph(
        body, "<float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float s = {1}, uint8 z = {0}, uint8[4,1] q = {1,2,3,4}>"
    )
    assert limit(found, []) == pytest.approx(expected)


def test_the_allowance_grows_as_nodes_run() -> None:
    allowance, seen = Allowance(), []
    for node in graph("a = Softmax(x) b = Softmax(a) c = Cast<to=10>(b) y = Relu(c)"):
        allowance.add(node)
        seen.append(allowance.limit)
    assert seen == sorted(seen)
    assert len(set(seen)) == 3


def test_a_type_of_the_outputs_counts_from_the_start() -> None:
    assert Allowance([DType.BFLOAT16]).limit == 4 * 2.0**-7


@pytest.mark.parametrize(("size", "count"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (100, 4), (1000, 22)])
def test_few_quantized_values_may_be_at_ties(size: int, count: int) -> None:
    assert most_ties(size) == count


@pytest.mark.parametrize(("budget", "quantized"), [(None, True), (0.1, False)])
def test_an_error_budget_replaces_the_rules_of_quantized_outputs(budget: float | None, quantized: bool) -> None:
    (found,) = tolerances(graph("y = QuantizeLinear(x, s, z)", "<float s = {1}, uint8 z = {0}>"), budget)
    assert (found.limit, found.quantized) == (max(QUANTIZED_LIMIT, budget or 0), quantized)
