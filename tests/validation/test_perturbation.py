"""A difference is explained where rounding moves the source as far, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnx.parser
import pytest

from ortconv.compare.gap import gap
from ortconv.compare.tolerance import is_nearer
from ortconv.errors import MismatchError
from ortconv.ir.tensor import Tensor
from ortconv.models import load
from ortconv.onnxio.load import from_proto
from ortconv.runtime.deadline import TimeLimitError
from ortconv.runtime.session import Session
from ortconv.validation.perturbation import FIRST_RUNS, MOST_RUNS, Perturbation, explains, perturb, perturbed
from ortconv.validation.reasons import Reasons
from ortconv.validation.reference import LACKS_TIME, Reference
from ortconv.validation.source_runs import ValidationSettings
from ortconv.validation.undefined import STAND_IN, replace_undefined
from ortconv.validation.validate import UNSTABLE, validate
from tests import text_models
from tests.batches import slow_except

INF = np.inf
LARGEST = np.finfo(np.float32).max
LARGE = np.array([-8.2, -9.1, -10.3, -12.7])
TAILS = LARGE / (1 + np.exp(-LARGE))
QUANTIZED = "q = QuantizeLinear(x, one, zero) d = DequantizeLinear(q, one, zero) y = Mul(d, three)"


class Case(NamedTuple):
    """A source, its inputs, a result that rounding explains, and others that have a fault."""

    body: str
    x: object
    fine: object
    wrong: tuple[object, ...]
    dtype: str = "float"


CASES = {
    "a quantized value at a tie": Case(
        QUANTIZED, [0.5, 3, 4, 5], [3, 9, 12, 15], ([7, 9, 12, 15], [3, 12, 15, 15], [0, 12, 12, 15], [0, 9, 12, INF])
    ),
    "a wrong element beside quantized values at ties": Case(
        QUANTIZED, [0.5, 1.5, 2.5, 5], [3, 3, 9, 15], ([3, 3, 9, 12], [3, 3, 6, 12])
    ),
    "an element that is one step off beside values at ties": Case(
        "q = QuantizeLinear(x, one, zero) y = DequantizeLinear(q, one, zero)",
        [0.5, 1.5, 2.5, 5], [1, 1, 3, 4], ([1, 1, 3, 3], [1, 1, 2, 3])
    ),
    "a difference of two quantized values, of which one is rounded up and one down": Case(
        "q = QuantizeLinear(x, one, zero) d = DequantizeLinear(q, one, zero) s = Constant<value_ints = [2, 2]>() "
        "m = Reshape(d, s) p = Transpose(m) f = Constant<value_ints = [4]>() t = Reshape(p, f) "
        "z = Sub(d, t) a = Add(z, one) y = Relu(a)",
        [3, 0.5, 1.5, 5], [1, 1, 1, 1], ([1, 3, 1, 1], [2, 1, 1, 1])
    ),
    "the pole of a function": Case(
        "y = Tan(x)", [np.pi / 2, 1, 0.5, 0.25], [-INF, 1.558, 0.5464, 0.2554],
        ([2066, INF, 0.5464, 0.2554], [INF, -INF, 0.5464, 0.2554]), "float16",
    ),
    "a pole that only the rounding of sums misses": Case(
        "a = Add(x, one) b = Sub(a, one) c = Sub(b, x) w = Floor(x) d = Add(c, w) y = Div(one, d)",
        [0.1, 1.5, 2.5, 3.25], [-9e9, 1, 0.5, 1 / 3],
        ([-9e9, 1.01, 0.5, 1 / 3], [-9e9, 1, INF, 1 / 3], [-9e9, 1, 0.5, 0.5]),
    ),
    "the tail of a sigmoid": Case(
        "s = Sigmoid(x) y = Mul(x, s)", LARGE, TAILS + LARGE * 1e-7, (TAILS + LARGE * 1e-6, TAILS[::-1])
    ),
    "a sigmoid near 0 that is an output": Case(
        "y = Sigmoid(x)", LARGE, 1 / (1 + np.exp(-LARGE)) + 1e-7, (1 / (1 + np.exp(-LARGE)) + 1e-6, TAILS[::-1])
    ),
    "rounding errors of a mean of equal numbers, where all inputs are zeros": Case(
        "a = Add(x, one) m = ReduceMean<axes = [0]>(a) s = Sub(a, m) y = Mul(s, three)",
        [0, 0, 0, 0], [3e-7, -3e-7, 3e-7, 0], ([1e-5, 0, 0, 0], [1, 1, 1, 1]),
    ),
    "zeros that the caller gives": Case("y = Sign(x)", [0, 2, -3, 0], [0, 1, -1, 0], ([1, 1, -1, 0], [-1, 1, -1, 1])),
    "the sign of a zero that the caller gives": Case(
        "y = Reciprocal(x)", [0, 2, 4, 8], [INF, 0.5, 0.25, 0.125], ([-INF, 0.5, 0.25, 0.125],)
    ),
    "the sign of a zero that a node makes": Case(
        "n = Neg(x) r = Reciprocal(n) y = HardSigmoid(r)", [0, 1, 2, 4], [1, 0.3, 0.4, 0.45],
        ([1.1, 0.3, 0.4, 0.45], [1, 0.33, 0.4, 0.45])
    ),
    "a number of elements, of which one is at the limit": Case(
        "l = Greater(x, one) y = Compress(x, l)", [1, 2, 3, 4], [1, 2, 3, 4],
        ([1, 1, 1, 2, 3, 4], [], [[2], [3], [4]], [2, 3, 5])
    ),
    "a number of elements, of which none is near the limit": Case(
        "l = Greater(x, one) y = Compress(x, l)", [0, 2, 3, 4], [2, 3, 4], ([1, 2, 3, 4], [2, 3])
    ),
}  # fmt: skip


def reference(folder: Path, case: Case) -> Reference:
    dtype = {"float": np.float32, "float16": np.float16}[case.dtype]
    constants = "<float one = {1}, uint8 zero = {0}, float three = {3}>" if "one" in case.body else ""
    text = f"g ({case.dtype}[4] x) => ({case.dtype}[4] y) {constants} {{ {case.body} }}"
    source = text_models.save(folder / "m.onnx", text)
    given = {"x": np.array(case.x, dtype)}
    return Reference(load(source), source, ValidationSettings(engines=("numpy",), given=(given,)))


def test_an_element_that_only_a_later_run_moves_beyond_the_last_bits() -> None:
    want, off = np.ones(2, np.float32), np.array([1e-4, 0], np.float32)
    runs = [want + off / 3, want - off / 3, want + off]
    assert explains(gap(want, want + off), want, runs)
    assert not explains(gap(want, want + off), want, runs[:2])


@pytest.mark.parametrize("name", slow_except([*CASES][::3], CASES))
def test_what_rounding_explains_is_no_fault(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    expected = reference(tmp_path, case)
    dtype = expected.trials[0].feeds["x"].dtype
    with expected.clock:
        expected.judge("numpy", [[np.array(case.fine, dtype)]], "", "", False)
        for wrong in case.wrong:
            with pytest.raises(MismatchError):
                expected.judge("numpy", [[np.array(wrong, dtype)]], "", "", False)


@pytest.mark.parametrize(
    ("got", "is_fine"),
    [
        ([1e9, 3.0, 1.0], True),
        ([-1e9, 3.1, 1.0], True),
        ([INF, 3.0, 1.0], False),
        ([np.nan, 3.0, 1.0], False),
        ([13e12, 3.0, 1.0], False),
        ([1e9, 3.3, 1.0], False),
        ([1e9, 2.9, 1.1], False),
        ([1e9, 3.0, INF], False),
        ([1e9, 3.0], False),
    ],
)
def test_a_result_is_as_near_to_the_truth_as_the_source(got: list[float], is_fine: bool) -> None:
    """The source is lost in the first element, off by 0.2 in the second one, and right in the third one."""
    truth, want = (np.array(values, np.float32) for values in ([4e12, 3.0, 1.0], [5e7, 3.2, 1.0]))
    assert is_nearer(truth, want, np.array(got, np.float32), [want]) is is_fine


@pytest.mark.parametrize(("got", "is_fine"), [(9.0, True), (30.0, False)])
def test_a_scalar_is_as_near_to_the_truth_as_the_source(got: float, is_fine: bool) -> None:
    truth, want = np.array(4.0, np.float32), np.array(1.0, np.float32)
    assert is_nearer(truth, want, np.array(got, np.float32), [want]) is is_fine


def test_a_wrong_scalar_in_float16_is_a_mismatch(tmp_path: Path) -> None:
    text = "g (float16[4] x) => (float16 y) { y = ReduceSum<keepdims = 0>(x) }"
    source = text_models.save(tmp_path / "m.onnx", text)
    given = {"x": np.ones(4, np.float16)}
    expected = Reference(load(source), source, ValidationSettings(engines=("numpy",), given=(given,)))
    with expected.clock, pytest.raises(MismatchError):
        expected.judge("numpy", [[np.array(5, np.float16)]], "", "", False)


def test_a_result_that_was_accepted_for_this_is_named(tmp_path: Path) -> None:
    case = CASES["a quantized value at a tie"]
    expected = reference(tmp_path, case)
    assert not validate(expected, tmp_path / "m.onnx").notes
    with expected.clock:
        expected.judge("numpy", [[np.array(case.fine, np.float32)]], "", "", False)
    assert validate(expected, tmp_path / "m.onnx").notes == (f"{UNSTABLE}: y",)


def test_large_inputs_may_overflow_as_they_do_in_onnxruntime(tmp_path: Path) -> None:
    """ReduceLogSumExp of onnxruntime may add up the exponentials themselves."""
    text = "g (float[1,2] x) => (float[1,1] y) { y = ReduceLogSumExp<axes = [1]>(x) }"
    source = text_models.save(tmp_path / "m.onnx", text)
    expected = Reference(load(source), source, ValidationSettings(engines=("numpy",)))
    large = next(i for i, trial in enumerate(expected.trials) if trial.is_large)
    overflow = [np.full((1, 1), INF, np.float32)]
    plain = list(expected.outputs["numpy"])
    with expected.clock:
        with pytest.raises(MismatchError):
            expected.judge("numpy", [*plain[:large], overflow, *plain[large + 1 :]], "", "", False)
        expected.outputs["onnxruntime"] = [*plain[:large], overflow, *plain[large + 1 :]]
        expected._own = dict.fromkeys(range(len(plain)))
        expected.judge("numpy", [*plain[:large], overflow, *plain[large + 1 :]], "", "", False)
        with pytest.raises(MismatchError):
            expected.judge("numpy", [overflow, *plain[1:]], "", "", False)


def test_every_second_movement_is_that_before_it_with_the_other_sign() -> None:
    value = np.linspace(-2, 2, 50)
    moves = [perturbed(value, Perturbation(n)) - value for n in range(4)]
    np.testing.assert_allclose(moves[0], -moves[1], atol=1e-15)
    assert np.abs(moves[0] - moves[2]).max() > 0


def test_exponents_stay_where_constants_move(tmp_path: Path) -> None:
    body = "p = Pow(x, three) y = Mul(p, one)"
    expected = reference(tmp_path, Case(body, [1, 2, 3, 4], [], ()))
    graph = load(expected.source).graph
    perturb(graph, Perturbation(0))
    moved = {v.const.numpy().item() for v in graph.initializers.values() if isinstance(v.const, Tensor)}
    assert 3.0 in moved
    assert 1.0 not in moved


QUANTIZED = """
agraph (float[1,2,4,4] x) => (float[1,1,4,4] y)
<float s = {0.5}, uint8 z = {0}, float t = {0.25}, int8 o = {0}, float u = {4.0}, int8[1,2,1,1] w = {1, 2}> {
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) wd = DequantizeLinear(w, t, o)
    c = Conv(xd, wd) r = Relu(c)
    yq = QuantizeLinear(r, u, z) y = DequantizeLinear(yq, u, z)
}
"""


@pytest.mark.parametrize(("fixed_point", "unit"), [(False, 4 * 2.0**-12), (True, 0.5 * 0.25 / 2)])
def test_sums_of_quantized_products_move_as_their_arithmetic_rounds(
    tmp_path: Path, fixed_point: bool, unit: float
) -> None:
    graph = load(text_models.save(tmp_path / "quantized.onnx", QUANTIZED)).graph
    perturb(graph, Perturbation(0), fixed_point)
    added = {}
    for node in graph:
        before = node.input(0) if node.op == "QuantizeLinear" else None
        if before is not None and before.producer is not None and before.producer.op == "Add":
            amount = before.producer.input(1)
            assert amount is not None
            assert amount.constant is not None
            added[node.out.name] = abs(amount.constant.numpy().item())
    assert added == {"xq": pytest.approx(0.5 * 2.0**-12, rel=1e-5), "yq": pytest.approx(unit, rel=1e-5)}


RESIZE = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,2,8,8] x) => (float[n,c,h,w] y) {
  s = Shape (x) f = Cast <to = 1> (s) d = Mul (f, twice) t = Cast <to = 7> (d)
  a = Resize <mode = "nearest"> (x, none, scales) b = Conv (a, w) y = Resize (b, none, none, t)
}"""


def test_constants_that_decide_shapes_stay(tmp_path: Path) -> None:
    """A scale or a factor of a size that is a little smaller gives a smaller shape."""
    model = onnx.parser.parse_model(RESIZE)
    held = {"none": [], "scales": [1, 1, 2, 2], "twice": [1, 1, 2, 2], "w": np.ones((2, 2, 1, 1))}
    for name, values in held.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(values, np.float32), name))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    graph = load(path).graph
    perturb(graph, Perturbation(0))
    moved = {v.name for v in graph.initializers.values() if not np.array_equal(v.constant.numpy(), held[v.name])}
    assert moved == {"w"}


def test_filled_weights_move() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,2] x, int64[m] s) => (float[1,3] y, float[m] z)
        <int64[2] shape = {2, 3}> { w = ConstantOfShape <value: tensor = float[1] {0.5}> (shape) y = MatMul (x, w)
        z = ConstantOfShape <value: tensor = float[1] {0.5}> (s) }"""
    graph = from_proto(onnx.parser.parse_model(text)).graph
    perturb(graph, Perturbation(0))
    moved = next(node for node in graph if node.op == "MatMul").inputs[1]
    assert moved is not None
    assert moved.constant is not None
    weights = moved.constant.numpy()
    assert len(np.unique(weights)) > 1
    assert weights == pytest.approx(0.5, rel=1e-5)
    assert graph.outputs[1].producer is not None
    assert graph.outputs[1].producer.op == "ConstantOfShape"


@pytest.mark.filterwarnings("error")
def test_the_largest_number_stays_finite() -> None:
    text = f"g (float[4] x) => (float[4] y) <float low = {{-{LARGEST}}}> {{ y = Add(x, low) }}"
    graph = from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')).graph
    for seed in range(4):
        perturb(graph, Perturbation(seed))
    (low,) = (v.constant for v in graph.initializers.values() if v.constant is not None)
    assert np.isfinite(low.numpy())


def test_overflow_of_large_inputs_depends_on_the_order_of_operations(tmp_path: Path) -> None:
    source = text_models.save(tmp_path / "m.onnx", "g (float[2,8] x) => (float[2,8] y) { y = Exp(x) }")
    expected = Reference(load(source), source, ValidationSettings(engines=("numpy",)))
    outputs = [found[0] for found in expected.outputs["numpy"] if found is not None]
    (large,) = [i for i, trial in enumerate(expected.trials) if trial.is_large]
    assert np.isinf(outputs[large]).any()
    results = [[np.where(np.isinf(y), LARGEST, y)] for y in outputs]
    expected.judge("numpy", results, "", "", excused=False)
    results[0] = [np.full_like(outputs[0], np.inf)]
    with pytest.raises(MismatchError, match="NaN or infinity in other places"):
        expected.judge("numpy", results, "", "", excused=False)


def test_overflow_of_numbers_that_are_nearly_the_largest(tmp_path: Path) -> None:
    """onnxruntime's MaxPool of -inf is the lowest number, of which a Conv may make -inf, and a Conv with a factor not."""
    source = text_models.save(
        tmp_path / "m.onnx", f"g (float[2] x) => (float[2] y) <float k = {{{LARGEST}}}> {{ y = Mul(x, k) }}"
    )
    expected = Reference(load(source), source, ValidationSettings(engines=("numpy",)))
    outputs = [found[0] for found in expected.outputs["numpy"] if found is not None]
    finite = [np.where(np.isinf(y), np.sign(y) * LARGEST / 4, y) for y in outputs]
    expected.judge("numpy", [[y] for y in finite], "", "", excused=False)
    with pytest.raises(MismatchError, match="NaN or infinity in other places"):
        expected.judge("numpy", [[np.where(np.isinf(y), np.sign(y), y)] for y in outputs], "", "", excused=False)


def test_hopeless_differences_need_few_runs() -> None:
    want = np.ones(4, np.float32)
    runs = iter([want * 1.01] * MOST_RUNS)
    assert not explains(gap(want, want * 2), want, runs)
    assert len(list(runs)) == MOST_RUNS - FIRST_RUNS


def test_a_result_near_to_float32_has_no_other_infinities(tmp_path: Path) -> None:
    nodes = "k = Constant<value_float = 1000.0>() c = Cast<to = 10>(k) a = Add(x, c) y = Sub(a, c)"
    source = text_models.save(tmp_path / "m.onnx", f"g (float16[64] x) => (float16[64] y) {{ {nodes} }}")
    given = {"x": np.linspace(0, 1, 64).astype(np.float16)}
    expected = Reference(load(source), source, ValidationSettings(("numpy",), (given,), numpy="numpy:reference"))
    exact = given["x"].copy()
    expected.judge("numpy", [[exact]], "", "", excused=False)
    exact[7] = np.inf
    with pytest.raises(MismatchError, match="NaN or infinity in other places"):
        expected.judge("numpy", [[exact]], "", "", excused=False)


def test_errors_beside_those_of_rounded_values_are_not_explained_by_them(tmp_path: Path) -> None:
    nodes = "k = Constant<value_float = 1000.0>() c = Cast<to = 10>(k) a = Add(x, c) y = Sub(a, c)"
    source = text_models.save(tmp_path / "m.onnx", f"g (float16[64] x) => (float16[64] y) {{ {nodes} }}")
    halves = np.arange(32) / 2
    given = np.concatenate([halves, halves + 0.2]).astype(np.float16)
    expected = Reference(load(source), source, ValidationSettings(("numpy",), ({"x": given},)))
    rounded = given + np.float16(1000) - np.float16(1000)
    expected.judge("numpy", [[rounded]], "", "", excused=False)
    rounded[:32] += np.float16(0.2)
    with pytest.raises(MismatchError):
        expected.judge("numpy", [[rounded]], "", "", excused=False)


def test_a_mismatch_names_the_option_if_time_ran_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: Reasons, i: int, number: int) -> None:
        raise TimeLimitError("late", backend="numpy")

    monkeypatch.setattr(Reasons, "_run_perturbed", late)
    source = text_models.save(tmp_path / "m.onnx", "g (float[1] x) => (float[1] y) { y = Neg(x) }")
    expected = Reference(load(source), source, ValidationSettings(("numpy",), ({"x": np.ones(1, np.float32)},)))
    with expected.clock, pytest.raises(MismatchError) as caught:
        expected.judge("numpy", [[np.zeros(1, np.float32)]], "", "more", excused=False)
    assert caught.value.hint == f"{LACKS_TIME}; more"


def test_random_outputs_keep_their_form(tmp_path: Path) -> None:
    source = text_models.save(tmp_path / "m.onnx", "g (float[4] x) => (float[4] y) { y = RandomNormalLike(x) }")
    expected = Reference(load(source), source, ValidationSettings(engines=("numpy",)))
    sets = len(expected.trials)
    expected.judge("numpy", [[np.zeros(4, np.float32)]] * sets, "", "", excused=False)
    with pytest.raises(MismatchError, match=r"float32\[4\] became float32\[3\]"):
        expected.judge("numpy", [[np.zeros(3, np.float32)]] * sets, "", "", excused=False)


def test_floats_whose_whole_part_fits_an_integer_are_defined(tmp_path: Path) -> None:
    text = "g (float[6] x) => (int8[6] y) { n = Neg(x) f = Neg(n) y = Cast<to = 3>(f) }"
    model = load(text_models.save(tmp_path / "m.onnx", text))
    assert replace_undefined(model.graph) == 1
    x = np.array([-129, -128.5, -128, 127.5, 128, np.nan], np.float32)
    (found,) = Session(model).run(None, {"x": x})
    assert found.tolist() == [STAND_IN, -128, -128, 127, STAND_IN, STAND_IN]
