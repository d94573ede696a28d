"""Operators that take float32 in place of float16 compute what their kernels compute of float16."""

import zlib

import float_cases
import numpy as np
import onnx
import pytest
from draw import Draw
from onnx import TensorProto, helper, numpy_helper
from retyped_cases import assert_close, retyped, variants

from ortconv.onnxio.load import from_proto
from ortconv.runtime.session import Session
from tests.batches import Case, batched, run_cases


def assert_same(model, feeds):
    """The reference computes the same, also where the plan holds a weight, without which it would be left as it is."""
    names = [v.name for v in model.graph.output]
    model.graph.initializer.append(numpy_helper.from_array(np.float16([1, 2]), "weight"))
    model.graph.node.append(helper.make_node("Neg", ["weight"], ["negative"]))
    model.graph.output.append(helper.make_tensor_value_info("negative", TensorProto.FLOAT16, [2]))
    loaded = from_proto(model)
    want = Session(loaded, ["numpy:reference"]).run(names, feeds)
    session = Session(loaded)
    for _ in range(3):
        for g, w in zip(session.run(names, feeds), want, strict=True):
            assert_close(g, w, exactly=False, narrowest="float16")
            assert getattr(g, "dtype", None) == getattr(w, "dtype", None)


@pytest.mark.slow
def test_of_onnx():
    def test(variant):
        assert_same(*retyped(*variant))

    cases = [Case(key, {"variant": variant}) for key, variant in variants().items() if key.endswith("tensor(float16)")]
    run_cases(test, cases)


WITHOUT_HALF = {"CDist", "Tokenizer"}
"""Operators whose schemas have no float16."""


@batched
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("op", [op for op in float_cases.OPERATORS if op not in WITHOUT_HALF])
def test_of_onnxruntime(op, seed):
    operator = float_cases.OPERATORS[op]
    case = operator.draw(Draw([zlib.crc32(op.encode()), 5, seed]))
    inputs = {f"x{i}": np.asarray(x) for i, x in enumerate(case.inputs) if x is not None}
    inputs = {name: x.astype(np.float16) if x.dtype.kind == "f" else x for name, x in inputs.items()}
    read = [f"x{i}" if f"x{i}" in inputs else "" for i in range(len(case.inputs))]
    made = [f"y{i}" for i in range(case.n_outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, read, made, domain=operator.domain, **case.attributes)],
        op,
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in made],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    assert_same(helper.make_model(graph, opset_imports=opsets, ir_version=8), inputs)
