"""One operator at a time, through the kernel table and through onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortconv.executor import plan
from ortconv.executor.kernels import registry
from tests import unoptimized

OPSET = 22
IR_VERSION = 10


def run_kernel(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
    opset: int = OPSET,
    n_outputs: int = 1,
) -> list[Any]:
    """The outputs of the kernel, which gets read-only inputs and must know every attribute."""
    kernel, arguments = _kernel_and_arguments(op, attributes, domain, opset, n_outputs)
    with np.errstate(all="ignore"):
        result = kernel.reference(*map(_frozen, inputs), **arguments)
    outputs = list(result) if isinstance(result, tuple) else [result]
    assert all(isinstance(x, np.ndarray | list) or x is None for x in outputs)
    return outputs[:n_outputs]


def accelerated(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    known: Sequence[int] = (),
    *,
    domain: str = "",
    opset: int = OPSET,
    n_outputs: int = 1,
) -> Callable[..., Any]:
    """What plans run instead of the kernel, where the inputs at the places `known` are constant."""
    kernel, arguments = _kernel_and_arguments(op, attributes, domain, opset, n_outputs)
    operands = [x if i in known else None for i, x in enumerate(inputs)]
    return plan._accelerated(kernel, operands, arguments)[0]


def _kernel_and_arguments(
    op: str, attributes: Mapping[str, Any] | None, domain: str, opset: int, n_outputs: int
) -> tuple[registry.Kernel, dict[str, Any]]:
    since = opset
    if onnx.defs.has(op, domain):
        since = onnx.defs.get_schema(op, opset, domain).since_version
    kernel = registry.lookup(domain, op, since)
    assert kernel is not None, f"no kernel for {domain}:{op} since {since}"
    arguments = dict(attributes or {})
    assert kernel.attributes is None or arguments.keys() <= kernel.attributes
    if kernel.wants_n_outputs:
        arguments["n_outputs"] = n_outputs
    return kernel, arguments


def _frozen(x: Any) -> Any:
    if isinstance(x, list):
        return [_frozen(item) for item in x]
    if isinstance(x, np.ndarray | np.generic):
        x = np.asarray(x).view()
        x.flags.writeable = False
    return x


def run_onnxruntime(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
    opset: int = OPSET,
    n_outputs: int = 1,
) -> list[Any]:
    """The outputs of onnxruntime on a model of that node alone. None inputs are left out, lists are sequences."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(n_outputs)]
    fields = {k: _attribute(v) for k, v in (attributes or {}).items() if v is not None}
    node = helper.make_node(op, names, outputs, domain=domain, **fields)
    graph = helper.make_graph(
        [node],
        op,
        [_value_info(name, x) for name, x in zip(names, inputs) if name],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    opsets = [helper.make_opsetid("", opset if domain == "" else OPSET)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return unoptimized.run(model, {name: x for name, x in zip(names, inputs) if name})


def _attribute(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    return list(value) if isinstance(value, tuple) else value


def _value_info(name: str, x: Any) -> onnx.ValueInfoProto:
    if isinstance(x, list):
        element = helper.make_tensor_type_proto(_element_type(x[0]), None)
        return helper.make_value_info(name, helper.make_sequence_type_proto(element))
    return helper.make_tensor_value_info(name, _element_type(x), np.shape(x))


def _element_type(x: Any) -> int:
    dtype = np.asarray(x).dtype
    return TensorProto.STRING if dtype.kind in "OU" else int(helper.np_dtype_to_tensor_dtype(dtype))


def assert_same(got: Any, want: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Same types, same shapes, equal integers and strings, close floats; NaN and infinities in the same places."""
    if isinstance(want, list):
        assert isinstance(got, list)
        assert len(got) == len(want)
        for g, w in zip(got, want):
            assert_same(g, w, rtol, atol)
        return
    want = np.asarray(want)
    assert isinstance(got, np.ndarray)
    assert got.shape == want.shape
    if want.dtype.kind in "OU":
        assert got.dtype.kind == "O"
        assert got.tolist() == want.tolist()
        return
    assert got.dtype == want.dtype
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=rtol, atol=atol, equal_nan=True)


def compare(
    op: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
    opset: int = OPSET,
    n_outputs: int = 1,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Assert that the kernel and onnxruntime agree."""
    got = run_kernel(op, inputs, attributes, domain=domain, opset=opset, n_outputs=n_outputs)
    want = run_onnxruntime(op, inputs, attributes, domain=domain, opset=opset, n_outputs=n_outputs)
    assert_same(got, want, rtol, atol)
