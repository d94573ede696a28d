"""A guard around all code that works on a model's nodes. After an unexpected exception, it finds out whether the model or ortconv
is at fault.

Each node is tried. If a node's operator cannot compute with its attributes and constants, and with zeros of the
declared types for its other inputs, the node breaks the rules of its operator: GraphError with the name of the first
such node. If all of them can, ortconv has a bug: InternalError. See decision 0013.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ortconv.errors import GraphError, InternalError, OrtconvError, UnsupportedError
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import LARGEST_RANK
from ortconv.ir.types import DType, TensorType

LARGEST_OPERAND = 1 << 20
"""Number of elements of an operand up to which a node is tried."""

LARGEST_TENSOR = 1 << 40
"""More elements than any tensor has."""

SECONDS = 5.0
"""Limit on the total time for trying nodes, in seconds."""

SMALLER = "fix smaller dimensions with --fix-dim, or use a machine with more memory"
"""The hint for work that needs more memory than there is."""

_HINT = "onnxruntime would refuse the node when it runs, if not before: mend the model where it is exported"


@contextmanager
def guarded(nodes: Iterable[Node], doing: str) -> Iterator[None]:
    """Turn exceptions of this block into ortconv's errors. `doing` describes the block's work on the nodes, for messages."""
    try:
        yield
    except OrtconvError:
        raise
    except MemoryError as error:
        raise UnsupportedError(f"{doing} needs more memory than there is", hint=SMALLER) from error
    except RecursionError as error:
        raise UnsupportedError(f"{doing}: the graph is nested too deeply") from error
    except Exception as error:
        raise _blamed(error, list(nodes), doing) from error


def _blamed(error: Exception, nodes: list[Node], doing: str) -> OrtconvError:
    if isinstance(error, NameError | ImportError):  # no model causes these
        nodes = []
    end = time.perf_counter() + SECONDS
    for node in _all(nodes):
        reason = _failure(node)
        if reason is not None:
            return GraphError(f"the operator cannot be computed: {reason}", node=node.label, hint=_HINT)
        if time.perf_counter() > end:
            break
    notes = getattr(error, "__notes__", ())
    return InternalError(f"{doing} failed: {type(error).__name__}: {error}", node=next(iter(notes), None))


def _all(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes, and the nodes of their subgraphs."""
    for node in nodes:
        yield node
        for sub in node.subgraphs:
            yield from sub.walk()


def _failure(node: Node) -> str | None:
    """The reason why a node cannot run with zeros as its inputs; None if it can, or if that is unknown."""
    from ortconv.executor.kernels.evaluate import kernel_of, run_kernel

    if node.subgraphs or node.graph is None:
        return None
    given = "its attributes"
    try:
        kernel, attributes = kernel_of(node)
        if kernel.build is not None:
            kernel.build(**attributes)
        operands = [None if v is None else _operand(v) for v in node.inputs]
        for value, operand in zip(node.inputs, operands, strict=True):
            if isinstance(operand, str) or (operand is None and value is not None):
                return operand
        given = f"inputs of shapes {[getattr(o, 'shape', None) for o in operands]}"
        run_kernel(node, operands)
    except (UnsupportedError, MemoryError):
        return None
    except Exception as error:
        return f"{error or type(error).__name__}, with {given}"
    return None


def _operand(value: Value) -> Any:
    """A constant, or zeros; None if the value is unknown or determines shapes; a message if no such tensor can exist."""
    if value.constant is not None:
        try:
            return value.constant.numpy()
        except ValueError as error:
            return f"'{value.name}' of shape {list(value.constant.shape)}: {error}"
    type = value.type
    if not isinstance(type, TensorType) or type.shape is None or type.dtype in (DType.UNDEFINED, DType.STRING):
        return None
    shape = [d if isinstance(d, int) else 1 for d in type.shape]
    if len(shape) > LARGEST_RANK:
        return f"'{value.name}' has rank {len(shape)}, the limit is {LARGEST_RANK}"
    size = math.prod(max(d, 1) for d in shape)
    if size > LARGEST_TENSOR:
        return f"'{value.name}' has {size} elements"
    if size > LARGEST_OPERAND or (type.dtype in (DType.INT64, DType.INT32) and len(shape) < 2):
        return None
    return np.zeros(shape, type.dtype.numpy)
