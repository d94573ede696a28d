"""Chooses the kernel of a node, binds its attributes, and evaluates it on constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.errors import UnsupportedError
from ortconv.executor.kernels.registry import Kernel, lookup
from ortconv.ir.graph import Attribute, Node, Tensors
from ortconv.ir.schema import schema_of, since_version
from ortconv.ir.tensor import SparseTensor, Tensor, aligned, dense


def objection(node: Node) -> str | None:
    """The reason why the numpy executor cannot run a node; None if it can. Subgraphs are checked, too."""
    found = _kernel_and_stated(node)
    if isinstance(found, str):
        return found
    return next((reason for sub in node.subgraphs for n in sub if (reason := objection(n))), None)


def kernel_of(node: Node) -> tuple[Kernel, dict[str, Any]]:
    """The kernel of a node and its keyword arguments, with subgraphs unchanged. Raises UnsupportedError if there is no kernel."""
    found = _kernel_and_stated(node)
    if isinstance(found, str):
        raise UnsupportedError(found, node=node.label)
    kernel, stated = found
    arguments = {name: _argument(value) for name, value in stated.items()}
    if kernel.wants_n_outputs:
        arguments["n_outputs"] = len(node.outputs)
    return kernel, arguments


def run_kernel(node: Node, operands: Sequence[Any]) -> Any:
    """The result of a node's kernel, whose errors are not caught. Raises UnsupportedError if there is no kernel."""
    kernel, arguments = kernel_of(node)
    with np.errstate(all="ignore"):
        return kernel.reference(*operands, **arguments)


def evaluate(node: Node) -> tuple[Any, ...]:
    """The outputs of a node without subgraphs whose inputs are all constants. Raises what `run_kernel` raises."""
    result = run_kernel(node, [None if v is None or v.const is None else aligned(dense(v.const)) for v in node.inputs])
    return result if isinstance(result, tuple) else (result,)


def _kernel_and_stated(node: Node) -> tuple[Kernel, dict[str, Attribute]] | str:
    """The kernel of a node and the attributes to pass to it, or the reason why there is none. An attribute that the kernel does not
    know may have its default value.
    """
    since = since_version(node)
    kernel = lookup(node.domain, node.op, since)
    if kernel is None:
        return f"no kernel for {node.domain + ':' if node.domain else ''}{node.op} version {since}"
    stated = {name: value for name, value in node.attrs.items() if name != _MEMORY_HINT}
    for name in () if kernel.attributes is None else sorted(stated.keys() - kernel.attributes):
        value, schema = stated.pop(name), schema_of(node)
        if schema is None or schema.defaults.get(name) != value:
            return f"the kernel of {node.op} does not take attribute {name}={value}"
    if kernel.most_operands is not None and len(node.inputs) > kernel.most_operands:
        return (
            f"the kernel of {node.op} takes at most {kernel.most_operands} inputs, and the node has {len(node.inputs)}"
        )
    return kernel, stated


_MEMORY_HINT = "consumed_inputs"
"""Before opset 6, it listed the inputs that may be overwritten."""


def _argument(value: Attribute) -> Any:
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, Tensors):
        return tuple(t.numpy() for t in value)
    if isinstance(value, SparseTensor):
        return value.dense().numpy()
    return value
