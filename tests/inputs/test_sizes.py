"""Sizes for free dimensions follow from the graph, and their memory is counted before anything is run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ortconv.errors import BackendError, UnsupportedError
from ortconv.inputs.budget import Budget, Clock
from ortconv.inputs.candidates import accepted, candidates
from ortconv.inputs.feeds import free_problem, make, sizes_to_try
from ortconv.inputs.shape_inputs import other_elements
from ortconv.inputs.shapes import infer_shapes
from ortconv.inputs.sizes import can_be_met, is_solved, solve
from ortconv.ir.footprint import footprint
from ortconv.ir.model import Model
from ortconv.ir.types import DType, TensorType
from ortconv.runtime.session import Session
from tests.batches import batched, slow_except
from tests.inputs.size_graphs import all_trials, first_trial, graph, ints

CASES = {
    "channels": (graph("y = Conv(x, w)", w=(4, 3, 3, 3)), {"C": 3}),
    "channels of groups": (graph("y = Conv<group = 4>(x, w)", w=(8, 2, 1, 1)), {"C": 8}),
    "channels of a transposed convolution": (graph("y = ConvTranspose(x, w)", w=(5, 2, 2, 2)), {"C": 5}),
    "inner dimension": (graph("y = MatMul(x, w)", w=(10, 6)), {"W": 10}),
    "inner dimension behind a Transpose": (
        graph("t = Transpose<perm = [0, 2, 3, 1]>(x) y = MatMul(t, w)", w=(10, 6)),
        {"C": 10},
    ),
    "inner dimension of Gemm": (graph("y = Gemm<transB = 1>(x, w)", "float[N,K] x", w=(6, 7)), {"K": 7}),
    "behind padding and a kernel": (
        graph("c = Conv(x, w) y = MatMul(c, v)", w=(2, 3, 3, 3), v=(10, 6)),
        {"C": 3, "W": 12},
    ),
    "behind a stride": (
        graph("c = Conv<strides = [2, 2]>(x, w) y = Add(c, b)", w=(2, 3, 2, 2), b=(1, 2, 20, 1)),
        {"H": 40},
    ),
    "broadcast": (graph("y = Mul(x, w)", w=(3, 1, 1)), {"C": 3}),
    "norm": (graph("y = LayerNormalization(x, w)", w=(12,)), {"W": 12}),
    "batch norm": (graph("y = BatchNormalization(x, w, w, w, w)", w=(6,)), {"C": 6}),
    "partners of Concat": (graph("y = Concat<axis = 1>(x, z)", "float[N,C,H,W] x, float[N,D,7,W] z"), {"H": 7}),
    "partners of Concat after one of unknown size": (
        graph("n = NonZero(m) y = Concat<axis = 0>(n, x, z)", "float[5] m, int64[2,N] x, int64[3,5] z"),
        {"N": 5},
    ),
    "product": (graph("y = Reshape(x, s)", "float[2,K] x", s=ints(4, 9)), {"K": 18}),
    "multiple": (graph("y = Reshape(x, s)", "float[2,K] x", s=ints(-1, 12)), {"K": 18}),
    "a computed target": (
        graph(
            "n = Shape<end = 1>(x) m = Mul(n, k) t = Concat<axis = 0>(o, m) y = Reshape(x, t)",
            "float[N,K] x",
            k=ints(3),
            o=ints(1),
        ),
        {"K": 3},
    ),
    "a target of int32": (
        graph("t = Cast<to = 7>(s) r = Reshape(x, t) y = Add(r, w)", "float[4,6] x, int32[2] s", w=(8, 3)),
        {"s(0)": 8, "s(1)": 3},
    ),
    "a shape of int32 to fill": (
        graph("t = Cast<to = 7>(s) f = ConstantOfShape(t) y = Conv(f, w)", "int32[4] s", w=(5, 3, 2, 7)),
        {"s(1)": 3, "s(2)": 2, "s(3)": 7},
    ),
    "a default shape to repeat to": (
        graph("a = Expand(x, t) y = Add(a, w)", "float[2,K] x, int64[2] t", t=ints(2, 5), w=(2, 1)),
        {"K": 5},
    ),
    "window": (graph("y = MaxPool<kernel_shape = [20, 1]>(x)"), {"H": 20}),
    "window of weights": (graph("y = Conv(x, k)", "float[1,2,4,4] x, float[3,2,K,K] k"), {"K": 4}),
    "padded window of weights": (
        graph("y = Conv<pads = [1, 1, 1, 1]>(x, k)", "float[1,2,4,4] x, float[3,2,K,K] k"),
        {"K": 4},
    ),
    "bias of Gemm": (graph("y = Gemm<transA = 1>(x, w, b)", "float[K,N] x, float[K,M] w", b=(5, 7)), {"N": 5, "M": 7}),
    "bias of a convolution": (graph("y = Conv(x, w, b)", "float[N,C,H,W] x, float[M,C,1,1] w", b=(6,)), {"M": 6}),
    "labels of Einsum": (
        graph('y = Einsum<equation = "bij,bjk->bik">(x, w)', "float[B,I,J] x, float[3,K,L] w"),
        {"B": 3, "J": 8, "K": 8},
    ),
    "parts": (graph("y, z = Split<axis = 1>(x, s)", s=ints(3, 4)), {"C": 7}),
    "table": (graph("y = Gather<axis = 1>(x, i)", i=ints(11)), {"C": 12}),
    "scattered slices": (
        graph("y = ScatterND(x, i, u)", "float[6,7,H,W] x, int64[K,2] i, float[M,3,4] u"),
        {"H": 3, "W": 4},
    ),
    "scattered elements": (graph("y = ScatterElements(x, i, u)", "float[5,9] x, int64[K,9] i, float[M,L] u"), {"L": 9}),
    "reflected pads": (graph('y = Pad<mode = "reflect">(x, p)', p=ints(0, 0, 3, 0, 0, 0, 20, 0)), {"H": 21}),
    "reflected pads of an axis": (
        graph('y = Pad<mode = "reflect">(x, p, , a)', opset=18, p=ints(12, 1), a=ints(-1)),
        {"W": 13},
    ),
    "pads below zero": (graph("y = Pad(x, p)", "float[N,K] x", p=ints(0, -9, 0, -10)), {"K": 20}),
    "pads behind an operator that ONNX has removed": (
        graph('i = ImageScaler<bias = [1.0]>(x) y = Pad<mode = "reflect">(i, p)', p=ints(0, 0, 0, 9, 0, 0, 0, 9)),
        {"W": 10},
    ),
    "recurrent": (graph("y = GRU<hidden_size = 2>(x, w, r)", "float[T,N,K] x", w=(1, 6, 5), r=(1, 6, 2)), {"K": 5}),
    "labels": (
        graph(
            "y = SoftmaxCrossEntropyLoss<reduction = 'none'>(x, t)".replace("'", '"'), "float[3,5,7] x, int64[N,L] t"
        ),
        {"N": 3, "L": 7},
    ),
    "blocks": (graph("y = DepthToSpace<blocksize = 3>(x)"), {"C": 9}),
    "frames": (graph("y = STFT(x, s, w)", "float[N,L] x", s=np.array(20), w=(100,)), {"L": 100}),
    "heads": (
        graph(
            "y, k, v = com.microsoft.MultiHeadAttention<num_heads = 4>(x, x, x, , , , p, q)",
            "float[N,S,24] x, float[N,H,P,D] p, float[N,H,P,D] q",
        ),
        {"H": 4, "D": 6},
    ),
    "packed heads": (
        graph(
            "y, k, v = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(x, , , p, q, l, t)",
            "float[N,S,64] x, float[N,H,P,D] p, float[N,H,P,D] q, int32[N] l, int32 t",
        ),
        {"H": 2, "D": 8},
    ),
    "buffer for a window": (
        graph(
            "y, k, v = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2, local_window_size = 20,"
            " sliding_window_cache = 1>(x, x, x, p, q, l, t)",
            "float[N,S,16] x, float[N,2,P,8] p, float[N,2,P,8] q, int32[N] l, int32 t",
        ),
        {"P": 20},
    ),
    "carried by a Loop": (
        graph(
            "v = Tile(x, r) y = Loop(n, c, v) <body = b (int64 i, bool d, float[3,8] s) => (bool e, float[] t)"
            " { e = Identity(d) t = Neg(s) }>",
            "float[N,K] x",
            n=np.array(2),
            c=np.array(True),
            r=ints(1, 2),
        ),
        {"N": 3, "K": 4},
    ),
    "carried and read by a Scan": (
        graph(
            "v = Tile(x, r) w = Tile(u, q) y, z = Scan<num_scan_inputs = 1, scan_input_axes = [1],"
            " body = b (float[6] s, float[3,8] p) => (float[] t, float[] o) { o = Neg(p) t = Neg(s) }>(v, w)",
            "float[N] x, float[M,L,K] u",
            r=ints(2),
            q=ints(1, 1, 2),
        ),
        {"N": 3, "M": 3, "K": 4},
    ),
    "a condition": (
        graph(
            "y = If(c) <then_branch = a () => (float[] p) { p = Relu(x) }, else_branch = b () => (float[] q) { q = Neg(x) }>",
            "float[2] x, bool[N] c",
        ),
        {"N": 1},
    ),
    "behind operators of ONNX Runtime": (
        graph(
            "q = com.microsoft.QuantizeLinear(x, s, z) d = com.microsoft.DequantizeLinear(q, s, z) y = Reshape(d, k)",
            "float[?,2,3] x",
            s=np.array(0.5, np.float32),
            z=np.array(3, np.uint8),
            k=ints(6, 5),
        ),
        {"x[0]": 5},
    ),
    "windows one after the other": (
        graph(
            "c = Conv<strides = [5, 5]>(x, w) d = Conv<strides = [2, 2]>(c, v) y = Conv(d, v)",
            w=(2, 1, 9, 9),
            v=(2, 2, 3, 3),
        ),
        {"C": 1, "H": 72, "W": 72},
    ),
    "behind quantized sums of ONNX Runtime": (
        graph(
            "t = Concat<axis = 1>(x, x) a = com.microsoft.QLinearAdd(t, s, z, t, s, z, s, z)"
            " m = com.microsoft.QLinearSoftmax<opset = 17>(a, s, z, s, z)"
            " d = DequantizeLinear(m, s, z) y = MatMul(d, w)",
            "uint8[?,K] x",
            s=np.array(0.5, np.float32),
            z=np.array(3, np.uint8),
            w=(10, 6),
        ),
        {"K": 5},
    ),
    "behind pads that exporters compute": (
        graph(
            "z = ConstantOfShape<value = int64[1] {0}>(k) c = Concat<axis = 0>(q, z) r = Reshape(c, m) l = Slice(r, i, e, o, i)"
            " t = Transpose<perm = [1, 0]>(l) f = Reshape(t, i) p = Cast<to = 7>(f) a = Pad(x, p) y = Conv(a, w)",
            k=ints(4),
            q=ints(0, 1, 0, 1),
            m=ints(-1, 2),
            i=ints(-1),
            e=ints(-9),
            o=ints(0),
            w=(2, 5, 3, 3),
        ),
        {"C": 5},
    ),
    "states of layers with the batch first": (
        graph(
            "s, y = LSTM<layout = 1, hidden_size = 4>(x, w, r, , , h, c)",
            "float[N,T,I] x, float[M,D,H] h, float[M,D,H] c",
            w=(1, 16, 3),
            r=(1, 16, 4),
        ),
        {"N": 2, "I": 3, "M": 2, "D": 1, "H": 4},
    ),
    "positions": (
        graph(
            "c = Conv<strides = [4, 4]>(x, w) r = Reshape(c, s) y = Add(r, p)",
            w=(8, 3, 4, 4),
            s=ints(0, 8, -1),
            p=(1, 8, 36),
        ),
        {"C": 3},
    ),
}


@batched
@pytest.mark.parametrize("name", CASES)
def test_sizes_follow_from_the_graph(name: str) -> None:
    case, expected = CASES[name]
    sizes, _ = next(sizes_to_try(free_problem(case, {}, {}), 2))
    assert {n: sizes[n] for n in expected} == expected


def test_sizes_follow_from_an_encoder() -> None:
    ends = "decoder = d () => (float[1] z) { z = Constant<value_floats = [1.0]>() }, eos_token_id = 1, pad_token_id = 1"
    encoder = (
        "encoder = e (float[b,c,t] audio, int32[b,n] text) => (float[b,f,u] z) { z = Conv(audio, w)  h = Add(z, p) }"
    )
    body = f"y = com.microsoft.WhisperBeamSearch<{encoder}, {ends}>(x, longest, longest, one, one)"
    inputs = "float[N,C,T] x, int32[1] longest, int32[1] one"
    case = graph(body, inputs, w=(4, 5, 3), p=(4, 10))
    sizes, _ = next(sizes_to_try(free_problem(case, {}, {}), 2))
    assert sizes == {"N": 2, "C": 5, "T": 12}


NOT_RUN = {"heads", "buffer for a window"}
"""Cases that the numpy backend does not run."""


@batched
@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_RUN])
def test_the_first_inputs_fit(name: str) -> None:
    case, _ = CASES[name]
    assert Session(Model(case)).run(None, next(candidates(case)))


def test_memory_is_counted_with_what_lives_at_one_time() -> None:
    case = graph("a = Relu(x) b = Relu(a) c = Relu(b) y = Add(c, x)", "float[1024] x")
    found = footprint(case, infer_shapes(free_problem(case, {}, {}), {}))
    assert found.bytes == 3 * 4096


def test_sizes_that_need_too_much_memory_are_not_made() -> None:
    case = graph("e = Expand(x, s) y = ReduceSum(e)", "float[N,1] x", s=ints(1, 1 << 40))
    with pytest.raises(UnsupportedError, match="GiB"):
        next(candidates(case))


@pytest.mark.slow
def test_a_failure_with_small_sizes_is_reported_even_if_others_are_too_large() -> None:
    def fail(feeds: dict[str, Any]) -> list[Any]:
        raise BackendError("a node fails", backend="numpy")

    with pytest.raises(BackendError, match="a node fails"):
        accepted(graph("y = Relu(x)", "float[A,B,C,D,E] x"), fail)


SOLVED = {
    "dimensions that must be equal change together": (
        graph("s = Add(x, z) y = Reshape(s, t)", "float[4,A] x, float[4,B] z", t=ints(28)), {"A": 7, "B": 7}
    ),
    "shapes before a Slice that onnx cannot infer": (
        graph(
            "c = Conv(x, w) m = MaxPool<kernel_shape = [9]>(c) y = Slice(m, b, e, a)",
            "float[1,1,H] x", w=(1, 1, 3), b=ints(0), e=ints(1), a=ints(2),
        ),
        {"H": 16},
    ),
    "a multiple behind a convolution without padding": (
        graph(
            "c = Conv(x, w) m = MaxPool<kernel_shape = [1, 2], strides = [1, 2]>(c) y = Reshape(m, t)", "float[N,1,3,W] x",
            w=(1, 1, 1, 5), t=ints(-1, 159),
        ),
        {"N": 1, "W": 110},
    ),
    "a dimension that its name states as a sum": (
        graph("y = Identity(m)", 'float[N,P] p, float[N,R] x, float[N,"P + R + 1"] m'),
        {"N": 1, "P": 8, "R": 8, "P + R + 1": 17},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVED)
def test_one_start_is_enough(name: str) -> None:
    case, sizes = SOLVED[name]
    problem = free_problem(case, {}, {})
    found = solve(problem, problem.first(8, 1))
    assert (found.sizes, found.is_met) == (sizes, True)


def test_sums_of_dimensions_of_one() -> None:
    """Flattened masks are indexed with numbers of the past and of new rows: only their sum is valid for all."""
    nodes = (
        "s = Shape<start = 1>(p) t = Shape<start = 1>(x) n = Add(s, t) r = Squeeze(n)"
        " l = Range(o, r, i) y = Gather<axis = 1>(m, l)"
    )
    case = graph(nodes, 'float[N,P] p, float[N,R] x, float[N,"P + R"] m', o=np.array(0), i=np.array(1))
    found = [trial.sizes for trial in all_trials(case)]
    assert [list(sizes.values()) for sizes in found[:2]] == [[2, 8, 8, 16], [1, 1, 1, 2]]


def test_a_size_that_broadcasts_is_no_contradiction() -> None:
    nodes = 'e = Einsum<equation = "ij,ij->ij">(p, q) y = Add(e, x)'
    for rows, can_fit in ((1, True), (2, False)):
        assert can_be_met(free_problem(graph(nodes, "float[A,4] x", p=(rows, 4), q=(3, 4)), {}, {})) == can_fit


def test_sizes_beyond_64_bits_are_unknown() -> None:
    case = graph("s = Shape(x) g = Gather(s, i) y = Reshape(x, k)", "float[B,C,4] x", i=ints(0, 65535), k=ints(-1, 4))
    with pytest.raises(BackendError, match="index 65535 is out of bounds"):
        first_trial(case, Clock(Budget()))


@pytest.mark.parametrize("op", ["Conv(x, w)", "MaxPool<kernel_shape = [5]>(x)"])
def test_windows_before_a_slice(op: str) -> None:
    """A size of 1 is tried, too. onnx ends the process on a Slice of a negative size."""
    case = graph(f"c = {op} y = Slice(c, a, b, d)", "float[N,2,L] x", w=(2, 2, 5), a=ints(-1), b=ints(-9), d=ints(2))
    found = [trial.sizes for trial in all_trials(case)]
    assert found[0] == {"N": 2, "L": 8}
    assert not is_solved(free_problem(case, {}, {}), {"N": 1, "L": 1})


BATCHES = {"3": 3, "1": 2}
"""Which batch is tried first where a Loop declares one."""


@pytest.mark.parametrize("declared", BATCHES)
def test_a_batch_is_2_only_where_it_would_be_1(declared: str) -> None:
    body = f"b (int64 i, bool d, float[{declared},8] s) => (bool e, float[] t) {{ e = Identity(d) t = Neg(s) }}"
    case = graph(
        f"v = Tile(x, r) y = Loop(n, c, v) <body = {body}>",
        "float[N,K] x",
        n=np.array(2),
        c=np.array(True),
        r=ints(1, 2),
    )
    assert first_trial(case, Clock(Budget())).sizes["N"] == BATCHES[declared]


def test_dimensions_that_must_be_equal_change_together() -> None:
    case = graph(
        "c = Concat<axis = 2>(x, z) y = Reshape(c, k)", "float[N,A,6,B] x, float[3,C,6,D] z", k=ints(3, 1, 12, 3)
    )
    sizes = first_trial(case, Clock(Budget())).sizes
    assert (sizes["N"], sizes["A"] * sizes["B"]) == (3, 3)
    assert (sizes["A"], sizes["B"]) == (sizes["C"], sizes["D"])


TARGETS = {
    "a channel behind a Transpose": (
        graph(
            "a = Reshape(x, t) b = Transpose<perm = [1, 0, 2, 3]>(a) y = Conv(b, w)", "float[2,3,9] x, int64[R] t",
            w=(4, 6, 1, 1),
        ),
        {"R": 4},
    ),
    "one after the other": (
        graph("a = Reshape(x, t) b = Reshape(a, u) y = Concat<axis = 0>(b, w)", "float[4,9] x, int64[3] t, int64[R] u",
              w=(1, 6, 2)),
        {"R": 3, "u(1)": 6, "u(2)": 2},
    ),
    "a product with another size": (
        graph("a = Reshape(x, t) y = Gemm(a, w)", "float[N,4] x, int64[R] t", w=(10, 3)), {"R": 2, "t(1)": 10}
    ),
    "a dimension that the next Reshape keeps": (
        graph("a = Reshape(x, t) y = Reshape(a, u)", "float[2,3,4] x, int64[R] t", u=ints(6, 1, 0, 2)), {"R": 3, "t(2)": 2}
    ),
    "a rank that pads have": (
        graph("a = Reshape(x, t) b = Pad(a, p) y = Neg(b)", "float[2,6] x, int64[R] t", p=ints(0, 0, 1, 0, 1, 0)), {"R": 3}
    ),
    "a rank that repeats have": (
        graph("a = Reshape(x, t) b = Relu(a) y = Tile(b, r)", "float[2,6] x, int64[R] t", r=ints(1, 2, 1, 1)), {"R": 4}
    ),
    "a rank that a window has, behind a Slice": (
        graph("a = Reshape(x, t) b = Slice(a, z, e) y = MaxPool<kernel_shape = [1, 1]>(b)", "float[2,6] x, int64[R] t",
              z=ints(0), e=ints(9)),
        {"R": 4},
    ),
    "channels and a window behind a Pad": (
        graph("a = Reshape(x, t) b = Pad(a, p) y = Conv(b, w)", "float[4,1,2,2] x, int64[R] t", w=(2, 8, 2, 2),
              p=ints(0, 0, 1, 0, 0, 0, 1, 0)),
        {"R": 4},
    ),
    "a dimension beyond those of the source that the next Reshape keeps": (
        graph("a = Reshape(x, t) y = Reshape(a, u)", "float[2,2] x, int64[R] t", u=ints(1, 2, 0, 2)), {"R": 3, "t(2)": 1}
    ),
    "a shape without content": (
        graph("a = ConstantOfShape(t) b = Relu(a) y = MatMul(b, w)", "int64[R] t", w=(5, 2)), {"R": 2, "t(1)": 5}
    ),
    "a length that another input shares": (
        graph("a = Reshape(x, t) y = Mul(u, v)", "float[6] x, int64[S] t, float[S,4] u, float[3,4] v"), {"S": 3}
    ),
    "a source of default ends": (
        graph("a = Slice(x, z, e) b = Reshape(a, t) c = Squeeze(b, o) y = Add(c, w)",
              "float[2,3,4,6] x, int64[4] t, int64[2] e", z=ints(1, 0), e=ints(2, 3), o=ints(-2), w=(4, 9, 2)),
        {"t(1)": 9, "t(2)": 1, "t(3)": 2},
    ),
    "a length that is a size of another input": (
        graph("a = Reshape(x, t) b = Reshape(a, s) c = Reshape(b, u) d = Conv(z, w) y = Add(c, d)",
              "float[4,K] x, int64[L] t, float[2,L,6] z", s=ints(1, 0, 0, 4), u=ints(1, 2, 4, 1), w=(1, 4, 2)),
        {"L": 4, "K": 2},
    ),
    "a size that follows from an element": (
        graph("m = ArgMax<axis = 0>(x) r = Reshape(m, t) y = Reshape(r, s)", "float[4,K,1] x, int64[L] t", s=ints(3, 0)), {}
    ),
    "a part that is always empty": (
        graph("r = Reshape(x, t) y = Reshape(r, s) a, b = Split<axis = 1>(r, p) c = Concat<axis = 1>(a, b) z = Abs(c)",
              "float[K,M,4] x, int64[4] t", s=ints(0, 1, -1, 3), p=ints(0, 1)), {}
    ),
    "an empty source": (graph("a = Reshape(x, t) y = Neg(a)", "float[3,1,0] x, int64[3] t"), {}),
    "a shape to repeat to": (
        graph("a = Expand(x, t) y = Add(a, w)", "float[1,4] x, int64[2] t", w=(3, 4)), {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_except([*TARGETS][::3], TARGETS))
def test_shapes_that_are_inputs_are_sizes(name: str) -> None:
    case, expected = TARGETS[name]
    problem = free_problem(case, {}, {})
    *_, (sizes, _) = sizes_to_try(problem, 2)
    assert {n: sizes[n] for n in expected} == expected
    assert Session(Model(case)).run(None, make(problem, sizes))


def test_the_elements_of_a_source_beyond_all_memory_are_not_factored() -> None:
    given = graph("y = Reshape(x, t)", "float[2147483647,2147483647] x, int64[2] t")
    assert sorted(other_elements(given.inputs[1], 2, 9)) == [-1, 1]


@pytest.mark.parametrize("variant", range(4))
def test_a_target_without_elements_has_no_other_elements(variant: int) -> None:
    given = graph("y = Reshape(x, t)", "float[2,3] x, int64[0] t")
    assert other_elements(given.inputs[1], 0, variant) == []


@pytest.mark.parametrize("type", ["int32", "int64"])
def test_a_target_that_is_cast(type: str) -> None:
    given = graph("i = Cast<to = 6>(t) c = Cast<to = 7>(i) y = Reshape(x, c)", f"float[3,4] x, {type}[2] t")
    target = next(candidates(given))["t"]
    assert (target.tolist(), target.dtype) == ([0, 0], type)


STEP = "b (float[] s, float[] u) => (float[] t, float[] v) { t = Identity(s) v = Mul(s, u) }"


UNRANKED = {
    "a matrix": (graph("y = EyeLike<k = 1>(x)", "float[] x"), (2,)),
    "a window, behind an activation": (graph("a = Relu(x) y = MaxPool<kernel_shape = [2, 2]>(a)", "float[] x"), (4,)),
    "weights of data": (graph("y = ConvTranspose(x, w, b)", "float[1,2,3,3] x, float[] w, float[4] b"), (4, 4, 1)),
    "data of weights": (graph("y = Conv(x, w)", "float[] x", w=(2, 3, 5)), (3,)),
    "a kernel alone": (graph("y = Conv<kernel_shape = [1, 1, 1]>(x, w)", "float[] x, float[] w"), (5, 5)),
    "a product": (graph("y = MatMul(x, w)", "float[] x, float[] w"), (2, 2)),
    "recurrence": (graph("y = GRU<hidden_size = 4>(x, w, r)", "float[] x, float[] w, float[] r"), (3, 3, 3)),
    "attention": (
        graph(
            "y, z = com.microsoft.Attention<num_heads = 2>(x, w, b, m, p)",
            "float[] x, float[] w, float[] b, int32[M,L] m, float[] p",
        ),
        (3, 2, 1, 2, 5),
    ),
    "attention of given widths": (
        graph(
            "y = com.microsoft.Attention<num_heads = 2, qkv_hidden_sizes = [4, 4, 6]>(x, w, b)",
            "float[] x, float[] w, float[] b",
        ),
        (3, 2, 1),
    ),
    "an input axis of a Scan": (
        graph(f"z, y = Scan<num_scan_inputs = 1, scan_input_axes = [2], body = {STEP}>(s, x)", "float[] s, float[] x"),
        (2, 3),
    ),
    "an output axis of a Scan": (
        graph(
            f"z, y = Scan<num_scan_inputs = 1, scan_output_axes = [-4], body = {STEP}>(s, x)", "float[] s, float[] x"
        ),
        (3, 4),
    ),
    "an element of the shape": (graph("s = Shape(x) y = Gather(s, i)", "float[] x", i=ints(0, 2)), (3,)),
    "a part of the shape": (graph("s = Shape(x) y = Slice(s, i, j)", "float[] x", i=ints(1), j=ints(4)), (4,)),
    "an axis": (graph("y = ReduceMax<axes = [-2]>(x) z = Softmax<axis = 2>(x)", "float[] x"), (3,)),
    "an axis of a sum": (graph("a = Sub(c, x) y = CumSum(a, i)", "float[] x", c=(), i=np.array(1)), (2,)),
    "an axis in the middle": (graph("y = Unsqueeze(x, i)", "float[] x", i=ints(2)), (2,)),
    "indices of a table": (
        graph("a = Gather(t, x) y = LSTM<hidden_size = 4>(a, w, r)", "int64[] x", t=(5, 3), w=(1, 16, 3), r=(1, 16, 4)),
        (2,),
    ),
    "data of weights, with an axis more": (
        graph("a = Unsqueeze(x, i) y = Conv(a, w)", "float[] x", w=(2, 1, 5), i=ints(1)),
        (2,),
    ),
    "data of quantized weights": (
        graph(
            "q, s, z = DynamicQuantizeLinear(x) y = ConvInteger(q, w, z, o)",
            "float[] x",
            w=np.zeros((2, 3, 5, 1), np.uint8),
            o=np.array(0, np.uint8),
        ),
        (4,),
    ),
    "terms of an equation": (graph('y = Einsum<equation = "b i j, bjk -> bik">(x, w)', "float[] x, float[] w"), (3, 3)),
    "a part along an axis": (graph("y = Slice(x, i, j, k)", "float[] x", i=ints(0), j=ints(1), k=ints(2)), (3,)),
    "a product within a Scan": (
        graph(
            "z, y = Scan<num_scan_inputs = 1, body = b (float[] s, float[] u) => (float[] t, float[] v)"
            " { v = Add(s, u) t = MatMul(v, w) }>(s, x)",
            "float[] s, float[] x",
            w=(3, 3),
        ),
        (2, 3),
    ),
}


@batched
@pytest.mark.parametrize("name", UNRANKED)
def test_ranks_that_are_not_declared(name: str) -> None:
    case, ranks = UNRANKED[name]
    assert tuple(map(len, free_problem(case, {}, {}).shapes.values())) == ranks
    assert first_trial(case, Clock(Budget()))


def test_an_input_before_a_scalar_is_a_scalar() -> None:
    case = graph("y = Relu(x)", "float[] x")
    case.outputs[0].retype(TensorType(DType.FLOAT, ()))
    assert [*free_problem(case, {}, {}).shapes.values()] == [()]


def test_a_rank_beyond_all_limits() -> None:
    case = graph("y = Pad(x, p)", "float[] x, int64[8000000000] p")
    shape, _ = free_problem(case, {}, {}).shapes.values()
    assert len(shape) == 64


def test_a_target_longer_than_a_rank_is_no_target() -> None:
    given = graph("y = ConstantOfShape(t)", "int64[4611686018427387904] t")
    assert not free_problem(given, {}, {}).targets


INVALID = {
    "short pads": graph("y = com.microsoft.NhwcFusedConv<pads = [1]>(x, w)", w=(4, 3, 3, 3)),
    "one hidden size": graph(
        "y = com.microsoft.Attention<num_heads = 2, qkv_hidden_sizes = [4]>(x, w, b)",
        "float[N,L,K] x, float[K,12] w, float[12] b",
    ),
    "heads that add up to 0": graph(
        "y, k, v = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = -1>(x, , , p, q, l, t)",
        "float[N,L,8] x, float[N,1,P,4] p, float[N,1,P,4] q, int32[N] l, int32 t",
    ),
    "a condition of two elements": graph(
        "y = Loop(n, c, x) <body = b (int64 i, bool d, float[2] s) => (bool e, float[2] t)"
        " { e = Identity(d) t = Neg(s) }>",
        "float[2] x",
        n=np.array(1 << 40),
        c=np.array([True, True]),
    ),
}
"""Nodes that break a rule which is not checked before a run."""


@pytest.mark.parametrize("name", slow_except(["a condition of two elements"], INVALID))
def test_invalid_nodes_end_in_the_error_of_a_run(name: str) -> None:
    with pytest.raises(BackendError, match="failed on input shapes"):
        next(all_trials(INVALID[name]))


@pytest.mark.slow
def test_a_block_of_0_in_an_ort_file_ends_in_the_error_of_a_run() -> None:
    given = graph("y = DepthToSpace<blocksize = 2>(x)")
    next(iter(given)).attrs["blocksize"] = 0
    with pytest.raises(BackendError, match="failed on input shapes"):
        next(all_trials(given))
