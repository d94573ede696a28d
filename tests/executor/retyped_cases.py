"""onnx's node cases in every other type that the operator's schema allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from node_cases import RANDOM, node_cases, plain
from onnx import TensorProto, defs, helper

Variant = tuple[Any, list[str], list[str], int]
"""A case, the inputs and the outputs that have another type, and that type."""
TYPES = {f"tensor({name.lower()})": number for name, number in TensorProto.DataType.items()}
NUMPY = {number: helper.tensor_dtype_to_np_dtype(number) for number in TYPES.values() if number}
UNDEFINED = ("Resize", {"tensor(bool)", "tensor(complex64)", "tensor(complex128)"})
"""Interpolation of booleans is not defined; only onnx's reference interpolates complex numbers."""
BYTES = {dtype.name for dtype in NUMPY.values() if dtype.name.startswith(("float8", "float6_"))}
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2} | dict.fromkeys(BYTES, 0.13)


def _by_parameter(names: Iterable[str], formals: Sequence[Any]) -> dict[str, list[str]]:
    """Names of a node's inputs or outputs by the type parameter of the schema."""
    found: dict[str, list[str]] = {}
    for i, name in enumerate(names):
        if name and formals:
            found.setdefault(formals[min(i, len(formals) - 1)].type_str, []).append(name)
    return found


@cache
def variants() -> dict[str, Variant]:
    """One case for each operator, type parameter and type."""
    found: dict[str, Variant] = {}
    for case in node_cases():
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


def _converted(x: Any, number: int) -> Any:
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


def retyped(case: Any, reads: list[str], makes: list[str], number: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The model of a variant and its inputs. Skips the test where there is no such model."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in [*model.graph.input, *model.graph.output]:
        if value.name in {*reads, *makes} and value.type.HasField("tensor_type"):
            value.type.tensor_type.elem_type = number
    feeds = {v.name: plain(x) for v, x in zip(case.model.graph.input, case.data_sets[0][0], strict=False)}
    try:
        feeds |= {name: _converted(feeds[name], number) for name in reads}
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, TypeError):
        pytest.skip("no such model")
    return model, feeds


def assert_close(got: Any, want: Any, exactly: bool, narrowest: str) -> None:
    """Numbers agree as well as the types of the result and of the narrowest value allow, integers to 1 or `exactly`."""
    if isinstance(want, list) or want is None:
        assert type(got) is type(want)
        for a, b in zip(got or [], want or [], strict=True):
            assert_close(a, b, exactly, narrowest)
        return
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    if got.dtype.kind in "OUS":
        np.testing.assert_array_equal(got.astype(str), want.astype(str))
        return
    # The reference has no numbers of its own for some types of a byte, and computes in others than it should.
    want = want.view(got.dtype) if got.dtype.itemsize == want.dtype.itemsize and want.dtype.kind in "iu" else want
    if got.dtype.kind in "biu":
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), 0, 0 if exactly else 1)
        return
    relative = max(TOLERANCE.get(name, 2e-4) for name in (got.dtype.name, narrowest))
    got, want = (v if got.dtype.kind == "c" else v.astype(np.float64) for v in (got, want))
    largest = np.abs(want[np.isfinite(want)]).max(initial=1e-3)
    np.testing.assert_allclose(got, want, relative, relative * largest)
