"""Values inside of partitions: read where the model has them, without another result of the run."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from ortconv import stream as module
from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions, NnapiProgram
from ortconv.compare.comparison import Subject, compare
from ortconv.compare.layers import compare_layers, largest_loss
from ortconv.inputs.candidates import first_run
from ortconv.ir.model import Model
from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session, _Sequence
from ortconv.stream import stream

RNG = np.random.default_rng(0)

IMAGES = """g (float[1,3,8,8] x) => (float[1,4,8,8] y) {
  a = Conv<pads=[1,1,1,1]>(x, w)
  b = Relu(a)
  c = Sigmoid(b)
  i = Identity(c)
  d = Mul(b, i)
  h = HardSigmoid(d)
  e = Conv(h, v)
  f = Neg(e)
  y = Add(e, f)
}"""
INNER = list("abcidhefy")

QUANTIZED = """g (float[1,6] x) => (float[1,6] y) <float s = {0.05}, uint8 z = {128}> {
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  e = DequantizeLinear(q, s, z)
  r = Add(d, e)
  p = QuantizeLinear(r, s, z)
  y = DequantizeLinear(p, s, z)
}"""


def model(text: str, **weights: np.ndarray) -> Model:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')
    for tensor in [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]:
        proto.graph.initializer.append(tensor)
    return from_proto(proto)


def images() -> Model:
    return model(
        IMAGES,
        w=RNG.standard_normal((4, 3, 3, 3)).astype(np.float32),
        v=RNG.standard_normal((4, 4, 1, 1)).astype(np.float32),
    )


X = {"x": RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)}


def operations(sequence: _Sequence) -> list[str]:
    programs = [p for p, _ in sequence.programs if isinstance(p, NnapiProgram)]
    return [o.code.name for p in programs for o in p.lowered.model.operations]


@pytest.mark.parametrize(
    "options", [NnapiOptions(), NnapiOptions(fp16=True), NnapiOptions(nchw=True)], ids=["nhwc", "fp16", "nchw"]
)
def test_kept_values_are_read_where_they_lie(options: NnapiOptions) -> None:
    source = images()
    plain = Session(source, [Nnapi(options)])
    kept = Session(source, [Nnapi(options)], keep=INNER)
    assert [name for name, _ in kept.regions] == ["nnapi", "numpy", "nnapi"]
    values = dict(zip(INNER, kept.run(INNER, X), strict=True))
    np.testing.assert_array_equal(values["y"], plain.run(None, X)[0])
    want = dict(zip(INNER, Session(source, keep=INNER).run(INNER, X), strict=True))
    for name in INNER:
        np.testing.assert_allclose(values[name], want[name], rtol=1e-2, atol=1e-2 if options.fp16 else 1e-5)
    assert kept._observer is not None
    apart = operations(kept._observer)
    apart.remove("RELU")  # which a convolution takes in where nobody looks at it
    assert apart == operations(plain._main) == operations(kept._main)


@pytest.mark.parametrize("room", [0, 2048, 1 << 20])
def test_a_stream_shows_what_is_inside_in_bounded_memory(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", room)
    source = images()
    found = [(v.name, result) for v, result in stream(source.graph, ["nnapi:fp16"], X)]
    assert [name for name, _ in found] == INNER
    session = Session(source, ["nnapi:fp16"], keep=INNER)
    for (_, got), want in zip(found, session.run(INNER, X), strict=True):
        np.testing.assert_array_equal(got, want)


def test_what_a_group_never_computes_is_no_layer() -> None:
    source = model(QUANTIZED)
    x = {"x": RNG.uniform(-3, 3, (1, 6)).astype(np.float32)}
    values = {v.name: result for v, result in stream(source.graph, ["nnapi"], x)}
    absent = {name for name, value in values.items() if value is None}
    assert absent == {"d", "e", "r"}
    shown = [layer.name for layer in compare_layers(source.graph, source.graph, (["numpy"], ["nnapi"]), x)]
    assert shown == [name for name in values if name not in absent]
    backwards = compare_layers(source.graph, source.graph, (["nnapi"], ["numpy"]), x)
    assert [layer.name for layer in backwards] == shown
    assert "y" in shown


LOSSY = """g (float[1,64] x) => (float[1,64] y) <float big = {2000}> {
  a = Tanh(x)
  b = Add(a, big)
  c = Sub(b, big)
  d = Mul(c, c)
  y = Sigmoid(d)
}"""


def test_the_layer_that_float16_hurts_is_named() -> None:
    source = model(LOSSY)
    subjects = [Subject("a", source, ("numpy",)), Subject("b", source, ("nnapi:fp16",))]
    feeds, _ = first_run(Session(source), ["y"])
    _, (found,) = compare(subjects, feeds, layers=True)
    assert found.loss is not None
    assert found.loss.layer.name == "c"
    assert found.loss.before < 1e-3 < found.loss.layer.found.scaled
    assert [layer.name for layer in found.layers or ()] == list("abcdy")
    assert largest_loss([]) is None
