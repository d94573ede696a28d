"""onnx's node cases in every other type that the operator's schema allows, against onnxruntime, or else onnx's own reference."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, defs, helper
from onnx.reference import ReferenceEvaluator

from ortconv.errors import OrtconvError
from ortconv.runtime.session import Session
from tests.batches import batched
from tests.executor.kernels.test_node_cases import CASES, RANDOM, _plain

TYPES = {f"tensor({name.lower()})": number for name, number in TensorProto.DataType.items()}
NUMPY = {number: helper.tensor_dtype_to_np_dtype(number) for number in TYPES.values() if number}
UNDEFINED = ("Resize", {"tensor(bool)", "tensor(complex64)", "tensor(complex128)"})
"""What lies between two booleans is not said, nor is what is between complex numbers computed anywhere but in onnx's reference."""

OTHERWISE = {
    "CastLike-T2-tensor(float8e8m0)": "the reference forgets to saturate, other than in Cast",
    "DequantizeLinear-T1-tensor(float4e2m1)": "the reference forgets the zero point, other than for floats of 6 bits",
    "MaxUnpool-T1-tensor(float16)": "onnxruntime counts indices in the output, other than the case",
    "ReduceSumSquare-T-tensor(uint32)": "the reference has a sum of another type",
}
"""Variants for which the expectation is wrong, and why."""


def _by_parameter(names, formals):
    """Names of a node's inputs or outputs by the type parameter of the schema."""
    found = {}
    for i, name in enumerate(names):
        if name and formals:
            found.setdefault(formals[min(i, len(formals) - 1)].type_str, []).append(name)
    return found


def _variants():
    """One case for each operator, type parameter and type."""
    found = {}
    for case in CASES:
        (node, *others), opsets = case.model.graph.node, {o.domain: o.version for o in case.model.opset_import}
        if others or node.op_type in RANDOM | {"ImageDecoder"} or node.domain not in opsets:
            continue
        schema = defs.get_schema(node.op_type, opsets[node.domain], node.domain)
        given = {v.name: v.type.tensor_type.elem_type for v in case.model.graph.input}
        reads, makes = _by_parameter(node.input, schema.inputs), _by_parameter(node.output, schema.outputs)
        for constraint in schema.type_constraints:
            names = reads.get(constraint.type_param_str, [])
            if not names or not all(given.get(name) for name in names):
                continue
            for type_str in constraint.allowed_type_strs:
                number = TYPES.get(type_str)
                if not number or number in {given[n] for n in names} or number == TensorProto.STRING:
                    continue
                if node.op_type == UNDEFINED[0] and type_str in UNDEFINED[1]:
                    continue
                key = f"{node.op_type}-{constraint.type_param_str}-{type_str}"
                found.setdefault(key, (case, names, makes.get(constraint.type_param_str, []), number))
    return found


VARIANTS = _variants()


def _converted(x, number):
    dtype, x = NUMPY[number], np.asarray(x)
    if x.dtype == object:
        pytest.skip("text")
    if number == TensorProto.BOOL:
        return x != 0
    if dtype.kind in "iu" or "int" in dtype.name:
        bits = int(dtype.name.lstrip("uint"))
        low, high = (0, 2**bits - 1) if dtype.name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return (
            np.clip(np.nan_to_num(x.real.astype(np.float64)), max(low, -(2**53)), min(high, 2**53))
            .astype(np.int64)
            .astype(dtype)
        )
    return x.astype(np.float64).astype(dtype) if x.dtype.kind != "c" else x.astype(dtype)


def _retyped(case, reads, makes, number):
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in [*model.graph.input, *model.graph.output]:
        if value.name in {*reads, *makes} and value.type.HasField("tensor_type"):
            value.type.tensor_type.elem_type = number
    feeds = {v.name: _plain(x) for v, x in zip(case.model.graph.input, case.data_sets[0][0], strict=False)}
    try:
        feeds |= {name: _converted(feeds[name], number) for name in reads}
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, TypeError):
        pytest.skip("no such model")
    return model, feeds


def _expected(model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(
            None, feeds
        )
    except Exception:
        try:
            return ReferenceEvaluator(model).run(None, feeds)
        except Exception:
            return None


def _assert_close(got, want, exactly, narrowest):
    if isinstance(want, list) or want is None:
        assert type(got) is type(want)
        return [_assert_close(a, b, exactly, narrowest) for a, b in zip(got or [], want or [], strict=True)]
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    if got.dtype.kind in "OUS":
        return np.testing.assert_array_equal(got.astype(str), want.astype(str))
    # The reference has no numbers of its own for some types of a byte, and computes in others than it should.
    want = want.view(got.dtype) if got.dtype.itemsize == want.dtype.itemsize and want.dtype.kind in "iu" else want
    if got.dtype.kind in "biu":
        return np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), 0, 0 if exactly else 1)
    relative = max(TOLERANCE.get(name, 2e-4) for name in (got.dtype.name, narrowest))
    got, want = (v if got.dtype.kind == "c" else v.astype(np.float64) for v in (got, want))
    largest = np.abs(want[np.isfinite(want)]).max(initial=1e-3)
    return np.testing.assert_allclose(got, want, relative, relative * largest)


BYTES = {dtype.name for dtype in NUMPY.values() if dtype.name.startswith(("float8", "float6_"))}
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2} | dict.fromkeys(BYTES, 0.13)


@batched
@pytest.mark.parametrize("key", VARIANTS)
def test_every_type(key, tmp_path):
    model, feeds = _retyped(*VARIANTS[key])
    onnx.save(model, tmp_path / "case.onnx")
    want = _expected(model, feeds)
    try:
        session = Session(tmp_path / "case.onnx")
        runs = [session.run(None, feeds) for _ in range(3)]
    except OrtconvError:
        assert want is None
        pytest.skip("nobody runs it")
    for value, got in zip(session.get_outputs(), runs[0], strict=True):
        if isinstance(got, np.ndarray) and got.dtype.kind not in "OUS":
            declared = next(v for v in model.graph.output if v.name == value.name).type
            assert got.dtype == NUMPY[declared.tensor_type.elem_type]
    # onnxruntime cuts what it resizes, the reference rounds it; and products of scales may be rounded in between.
    exactly = not key.startswith(("Resize", "QLinearMatMul"))
    for got in runs if want is not None and key not in OTHERWISE else []:
        _assert_close(got, want, exactly, NUMPY[VARIANTS[key][3]].name)
