"""What plans run instead of a kernel computes what the kernel defines: at once, with constant operands, and recorded.

The operands are those of onnx's node cases and drawn ones, each drawn case with three seeds.
"""

import zlib

import float_cases
import numpy as np
import onnx
import pytest
import quantized_cases
from draw import Draw, Tolerance
from node_cases import node_cases, plain
from single_node import accelerated, run_kernel

from ortconv.executor.kernels import registry
from ortconv.executor.replay.recorder import Recorder
from ortconv.executor.replay.work import Recordable
from tests.batches import Case, batched, run_cases

DRAWN = float_cases.OPERATORS | quantized_cases.OPERATORS
SEEDS = 3


def _entries():
    registry.lookup("", "NoSuchOperator", 1)  # imports all families
    for (domain, op), entries in registry._kernels.items():
        if any(e.fast or e.record or e.prepare or e.inner for e in entries):
            yield domain, op


ACCELERATED = set(_entries())


def _attributes(node):
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    plain = {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}
    return {k: [s.decode() for s in v] if isinstance(v, list) and v and isinstance(v[0], bytes) else v
            for k, v in plain.items()}  # fmt: skip


def _of_node(case):
    """Domain, operator, inputs, attributes, opset and number of outputs of a node case."""
    (node,), (inputs, _) = case.model.graph.node, case.data_sets[0]
    values = dict(zip([v.name for v in case.model.graph.input], map(plain, inputs)))
    opset = next(o.version for o in case.model.opset_import if o.domain == node.domain)
    operands = [values.get(name) if name else None for name in node.input]
    return node.domain, node.op_type, operands, _attributes(node), opset, len(node.output)


def _drawn(op, seed):
    case = DRAWN[op].draw(Draw([zlib.crc32(op.encode()), 77, seed]))
    return DRAWN[op].domain, op, list(case.inputs), dict(case.attributes), 22, case.n_outputs


def _of_nodes():
    """The node cases of accelerated operators."""
    return [
        c
        for c in node_cases()
        if len(c.model.graph.node) == 1
        and (c.model.graph.node[0].domain, c.model.graph.node[0].op_type) in ACCELERATED
        and len(c.data_sets[0][0]) == len(c.model.graph.input)
    ]


RANDOM = [
    pytest.param(op, seed, id=f"{op}-{seed}")
    for op, operator in DRAWN.items()
    if (operator.domain, op) in ACCELERATED
    for seed in range(SEEDS)
]


def test_every_operator_has_a_case():
    tried = {(n.domain, n.op_type) for case in _of_nodes() for n in case.model.graph.node}
    tried |= {(DRAWN[p.values[0]].domain, p.values[0]) for p in RANDOM}
    assert {op for _, op in ACCELERATED - tried} <= {"SimplifiedLayerNormalization"}


def _results(x):
    return x if isinstance(x, tuple) else (x,)


def _close(got, want, tolerance):
    for g, w in zip(_results(got), _results(want), strict=False):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        if w.dtype.kind in "fV":
            half = w.dtype.itemsize < 4
            g, w = g.astype(np.float64), w.astype(np.float64)
            limit = max(1e-2 if half else 1e-5, tolerance.rtol)
            largest = np.abs(w[np.isfinite(w)]).max(initial=1.0)
            np.testing.assert_allclose(g, w, limit, limit * min(largest, 1e6), equal_nan=True)
        elif w.dtype.kind in "iu" and tolerance.integer:
            assert np.abs(g.astype(np.int64) - w.astype(np.int64)).max(initial=0) <= tolerance.integer
        else:
            np.testing.assert_array_equal(g, w)


@batched
@pytest.mark.parametrize(("op", "seed"), RANDOM)
def test_drawn_cases(op, seed):
    _is_as_defined(*_drawn(op, seed), DRAWN[op].tolerance)


def test_node_cases():
    run_cases(
        lambda case: _is_as_defined(*_of_node(case), Tolerance()), [Case(c.name, {"case": c}) for c in _of_nodes()]
    )


def _is_as_defined(domain, op, inputs, attributes, opset, n_outputs, tolerance):
    options = {"domain": domain, "opset": opset, "n_outputs": n_outputs}
    want = tuple(run_kernel(op, inputs, attributes, **options))
    for known in ((), range(1, len(inputs))):
        function = accelerated(op, inputs, attributes, known, **options)
        with np.errstate(all="ignore"):
            _close(function(*inputs), want, tolerance)
            _replays(function, inputs)


def _replays(function, inputs):
    """What is recorded with some numbers computes with others what the function does."""
    first, *others = inputs
    if not isinstance(function, Recordable) or not isinstance(first, np.ndarray) or first.dtype.hasobject:
        return
    recorder = Recorder()
    held = recorder.copy(first)
    result = function.record(recorder, held, *others)
    if result is None:
        return
    calls = recorder.calls()
    changed = np.flip(first) if first.dtype.kind in "fiu" and first.dtype.char != "e" else first
    np.copyto(held, changed)
    for call, operands in calls:
        call(*operands)
    for got, want in zip(_results(result), _results(function(changed.copy(order="K"), *others)), strict=True):
        np.testing.assert_array_equal(got, want)
