"""onnx's node cases in every other type that the operator's schema allows, against onnxruntime, or else onnx's own reference."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from retyped_cases import NUMPY, assert_close, retyped, variants

from ortconv.errors import OrtconvError
from ortconv.runtime.session import Session
from tests.batches import batched
from tests.unoptimized import session, without_overflow

OTHERWISE = {
    "CastLike-T2-tensor(float8e8m0)": "the reference forgets to saturate, other than in Cast",
    "DequantizeLinear-T1-tensor(float4e2m1)": "the reference forgets the zero point, other than for floats of 6 bits",
    "MaxUnpool-T1-tensor(float16)": "onnxruntime counts indices in the output, other than the case",
    "ReduceSumSquare-T-tensor(uint32)": "the reference has a sum of another type",
}
"""Variants for which the expectation is wrong, and why."""


VARIANTS = variants()


def _expected(model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    exact, rest = without_overflow(model, feeds)
    try:
        return session(exact, options).run(None, rest)
    except Exception:
        try:
            return ReferenceEvaluator(model).run(None, feeds)
        except Exception:
            return None


@batched
@pytest.mark.parametrize("key", VARIANTS)
def test_every_type(key, tmp_path):
    model, feeds = retyped(*VARIANTS[key])
    onnx.save(model, tmp_path / "case.onnx")
    want = _expected(model, feeds)
    try:
        ours = Session(tmp_path / "case.onnx")
        runs = [ours.run(None, feeds) for _ in range(3)]
    except OrtconvError:
        assert want is None
        pytest.skip("nobody runs it")
    for value, got in zip(ours.get_outputs(), runs[0], strict=True):
        if isinstance(got, np.ndarray) and got.dtype.kind not in "OUS":
            declared = next(v for v in model.graph.output if v.name == value.name).type
            assert got.dtype == NUMPY[declared.tensor_type.elem_type]
    # onnxruntime cuts what it resizes, the reference rounds it; and products of scales may be rounded in between.
    exactly = not key.startswith(("Resize", "QLinearMatMul"))
    for got in runs if want is not None and key not in OTHERWISE else []:
        assert_close(got, want, exactly, NUMPY[VARIANTS[key][3]].name)
