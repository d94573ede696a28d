"""Who is to blame for an exception: the node that cannot compute by itself, or ortconv."""

from __future__ import annotations

import pytest
from onnx import parser

from ortconv import Session
from ortconv.errors import GraphError, InternalError, UnsupportedError, UsageError
from ortconv.executor.guard import guarded
from ortconv.ir.graph import Graph
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context, rule
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.pattern import P


def graph(body: str, constants: str = "", inputs: str = "float[2,3] x") -> Graph:
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float y) <{constants}> {{ {body} }}'
    return from_proto(parser.parse_model(text)).graph


def test_a_node_that_cannot_compute_is_to_blame() -> None:
    broken = graph("r = Relu(x) y = Reshape(r, s)", "int64[1] s = {5}")
    with (
        pytest.raises(GraphError, match="Reshape 'y': the operator cannot be computed") as raised,
        guarded(broken, "x"),
    ):
        raise IndexError("somewhere else")
    assert raised.value.exit_code == 3
    assert isinstance(raised.value.__cause__, IndexError)


@pytest.mark.parametrize(
    "error", [IndexError("i"), KeyError("k"), TypeError("t"), ZeroDivisionError(), AssertionError()]
)
def test_what_no_node_accounts_for_is_a_bug(error: Exception) -> None:
    right = graph("r = Relu(x) y = Reshape(r, s)", "int64[1] s = {6}")
    message = f"testing failed: {type(error).__name__}"
    with pytest.raises(InternalError, match=message) as raised, guarded(right, "testing"):
        raise error
    assert raised.value.exit_code == 1


@pytest.mark.parametrize("error", [NameError("n"), UnboundLocalError("u"), ImportError("i")])
def test_errors_that_no_model_causes_are_bugs(error: Exception) -> None:
    broken = graph("r = Relu(x) y = Reshape(r, s)", "int64[1] s = {5}")
    with pytest.raises(InternalError, match=f"testing failed: {type(error).__name__}"), guarded(broken, "testing"):
        raise error


def test_an_impossible_shape_is_to_blame_even_if_it_is_empty() -> None:
    huge = graph("y = Relu(x)", inputs="float[0,4611686018427387904,4611686018427387904] x")
    with pytest.raises(GraphError, match="elements"), guarded(huge, "testing"):
        raise IndexError


@pytest.mark.parametrize("error", [MemoryError(), RecursionError()])
def test_limits_are_no_bugs(error: Exception) -> None:
    with pytest.raises(UnsupportedError, match="testing"), guarded(graph("y = Relu(x)"), "testing"):
        raise error


def test_errors_of_ours_pass() -> None:
    mine = UsageError("mine")
    with pytest.raises(UsageError) as raised, guarded(graph("y = Relu(x)"), "testing"):
        raise mine
    assert raised.value is mine


def test_a_broken_rule_is_named_with_its_node() -> None:
    @rule("BrokenRule", P("Relu", "x"))
    def broken(m):
        raise LookupError("no such thing")

    found = graph("y = Relu(x)")
    message = "BrokenRule at Relu 'y': optimizing failed: LookupError: no such thing"
    with pytest.raises(InternalError, match=message), guarded(found, "optimizing"):
        Pass("Broken", broken).run(found, Context())


def test_a_kernel_that_cannot_be_prepared() -> None:
    weights = f"float[1,8,2] w = {{{', '.join(['1'] * 16)}}}, float[1,8,3] r = {{{', '.join(['1'] * 24)}}}"
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[3,1,2] x) => (float y) <{weights}>'
        "{ y, h, c = LSTM<hidden_size = 2>(x, w, r) }"
    )
    with pytest.raises(GraphError, match="LSTM 'y': the operator cannot be computed"):
        Session(from_proto(proto))


def test_a_node_of_a_subgraph_is_to_blame() -> None:
    body = "y = If(c) <then_branch = t () => (float[5] a) { a = Reshape(x, s) }, else_branch = e () => (float b) { b = Relu(x) }>"
    broken = graph(body, "int64[1] s = {5}", "float[2,3] x, bool c")
    with pytest.raises(GraphError, match="Reshape 'a': the operator cannot be computed"), guarded(broken, "x"):
        raise IndexError("somewhere else")
