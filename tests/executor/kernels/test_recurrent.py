"""Recurrent layers against onnxruntime."""

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from ortconv.errors import OrtconvError, UnsupportedError
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session
from tests.batches import batched
from tests.executor.single_node import accelerated, assert_same, compare, run_kernel

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LENGTH, BATCH, INPUT, HIDDEN = 5, 3, 4, 6

OPTIONS = [
    {},
    {"clip": 0.3},
    {"lengths": [5, 2, 3]},
    {"lengths": [1, 5, 4], "states": True},
    {"lengths": [0, 5, 2], "states": True},
    {"bias": False},
    {"states": True},
]
SPECIFIC = [
    ("GRU", {"linear_before_reset": 1}),
    ("GRU", {"linear_before_reset": 1, "lengths": [5, 2, 3], "clip": 0.5}),
    ("GRU", {"linear_before_reset": 1, "bias": False}),
    ("LSTM", {"peepholes": True}),
    ("LSTM", {"peepholes": True, "states": True, "lengths": [5, 2, 3], "clip": 0.5}),
    ("LSTM", {"input_forget": 1}),
    ("LSTM", {"input_forget": 1, "peepholes": True}),
]
ACTIVATIONS = [
    ("RNN", ["Affine"], [0.5], [0.1]),
    ("RNN", ["Relu"], None, None),
    ("RNN", ["LeakyRelu"], [0.2], None),
    ("RNN", ["ThresholdedRelu"], [0.2], None),
    ("RNN", ["ScaledTanh"], [0.7], [1.3]),
    ("RNN", ["HardSigmoid"], [0.3], [0.4]),
    ("RNN", ["Elu"], [0.3], None),
    ("RNN", ["Softsign"], None, None),
    ("RNN", ["Softplus"], None, None),
    ("GRU", ["HardSigmoid", "ScaledTanh"], [0.3, 0.7], [0.4, 1.3]),
    ("GRU", ["Sigmoid", "LeakyRelu"], [0.25], None),
    ("LSTM", ["HardSigmoid", "Tanh", "Softsign"], [0.3], [0.4]),
    ("LSTM", ["Sigmoid", "Affine", "LeakyRelu"], [0.5, 0.1], [0.2]),
]


def values(rng, *shape):
    return (rng.standard_normal(shape) * 0.5).astype(np.float32)


def layer(rng, op, direction, options):
    """Inputs, attributes and number of outputs."""
    options = dict(options)
    directions, gates = 2 if direction == "bidirectional" else 1, GATES[op]
    lengths, states = options.pop("lengths", None), options.pop("states", False)
    inputs = [
        values(rng, LENGTH, BATCH, INPUT),
        values(rng, directions, gates * HIDDEN, INPUT),
        values(rng, directions, gates * HIDDEN, HIDDEN),
        values(rng, directions, 2 * gates * HIDDEN) if options.pop("bias", True) else None,
        None if lengths is None else np.array(lengths, np.int32),
        values(rng, directions, BATCH, HIDDEN) if states else None,
    ]
    if op == "LSTM":
        inputs.append(values(rng, directions, BATCH, HIDDEN) if states else None)
        inputs.append(values(rng, directions, 3 * HIDDEN) if options.pop("peepholes", False) else None)
    return inputs, {"direction": direction, "hidden_size": HIDDEN, **options}, 3 if op == "LSTM" else 2


@batched
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op", "options"), [(op, o) for op in GATES for o in OPTIONS] + SPECIFIC)
def test_recurrent(rng, op, direction, options):
    inputs, attributes, n_outputs = layer(rng, op, direction, options)
    compare(op, inputs, attributes, opset=14, n_outputs=n_outputs)


@batched
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("options", [{}, {"states": True}, {"bias": False}], ids=str)
@pytest.mark.parametrize("op", GATES)
def test_constant_weights(rng, op, options, direction):
    """Plans compute all directions together, and gates in another form."""
    reset = {"linear_before_reset": 1} if op == "GRU" else {}
    inputs, attributes, n_outputs = layer(rng, op, direction, options | reset)
    want = run_kernel(op, inputs, attributes, opset=14, n_outputs=n_outputs)
    got = accelerated(op, inputs, attributes, known=(1, 2, 3), opset=14, n_outputs=n_outputs)(*inputs)
    for a, b in zip(got, want, strict=True):
        assert_same(a, b)


@batched
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize(("op", "names", "alpha", "beta"), ACTIVATIONS)
def test_activations(rng, op, names, alpha, beta, direction):
    times = 2 if direction == "bidirectional" else 1
    options = {"activations": names * times}
    if alpha:
        options["activation_alpha"] = alpha * times
    if beta:
        options["activation_beta"] = beta * times
    inputs, attributes, n_outputs = layer(rng, op, direction, options)
    compare(op, inputs, attributes, opset=14, n_outputs=n_outputs)


@pytest.mark.parametrize("op", GATES)
def test_layout_swaps_batch_and_time(rng, op):
    inputs, attributes, n_outputs = layer(rng, op, "bidirectional", {"states": True})
    y, *states = run_kernel(op, inputs, attributes, opset=14, n_outputs=n_outputs)
    swapped = [None if x is None else x.swapaxes(0, 1) if i in (0, 5, 6) else x for i, x in enumerate(inputs)]
    got, *got_states = run_kernel(op, swapped, {**attributes, "layout": 1}, opset=14, n_outputs=n_outputs)
    assert_same(got, y.transpose(2, 0, 1, 3))
    for a, b in zip(got_states, states):
        assert_same(a, b.swapaxes(0, 1))


@pytest.mark.parametrize("op", GATES)
def test_half_precision(rng, op):
    inputs, attributes, _ = layer(rng, op, "forward", {})
    halves = [x if x is None else x.astype(np.float16) for x in inputs]
    got = run_kernel(op, halves, attributes, opset=14)[0]
    want = run_kernel(op, [x if x is None else x.astype(np.float32) for x in halves], attributes, opset=14)[0]
    assert_same(got, want.astype(np.float16), rtol=0, atol=0)


@pytest.mark.parametrize("op", GATES)
def test_an_endless_sequence_of_nothing(op):
    w, r = (np.zeros((1, GATES[op] * HIDDEN, n), np.float32) for n in (INPUT, HIDDEN))
    with pytest.raises(UnsupportedError, match="steps, the limit is"):
        run_kernel(op, [np.zeros((1 << 40, 0, INPUT), np.float32), w, r], {"hidden_size": HIDDEN})


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("op", GATES)
def test_initial_states_of_another_batch(op, constant, rng):
    """onnxruntime refuses them, too."""
    (x, w, r, b, _, h, *_), *_ = layer(rng, op, "forward", {"states": True})
    constants = {"w": w, "r": r, "b": b} if constant else {}
    head = "float[t,n,4] x, float[1,k,6] h" + ("" if constant else ", float[1,g,4] w, float[1,g,6] r, float[1,d] b")
    text = f"""<ir_version: 8, opset_import: ["" : 14]> g ({head}) => (float[t,1,n,6] y)
        {{ y = {op}<hidden_size = 6{", linear_before_reset = 1" if op == "GRU" else ""}>(x, w, r, b, , h) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    feeds = {"x": x, "h": h[:, :1]} | ({} if constant else {"w": w, "r": r, "b": b})
    with pytest.raises(OrtconvError, match="an initial state has shape"):
        Session(from_proto(model), ["numpy"]).run(None, feeds)


def test_a_direction_that_does_not_exist() -> None:
    text = """<ir_version: 8, opset_import: ["" : 14]> g (float[2,1,3] x) => (float y)
        <float[1,2,3] w = {1, 2, 3, 4, 5, 6}, float[1,2,2] r = {1, 2, 3, 4}>
        { y = RNN<hidden_size = 2, direction = "forwards">(x, w, r) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].ClearField("type")
    with pytest.raises(OrtconvError, match="there is no direction 'forwards'"):
        Session(from_proto(proto), ["numpy"]).run(None, {"x": np.zeros((2, 1, 3), np.float32)})
