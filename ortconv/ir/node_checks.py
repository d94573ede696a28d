"""Rules for single nodes that the schemas of operators do not state. onnxruntime refuses or fails to run nodes that break them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ortconv.ir.attributes import Ints
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.types import Shape
from ortconv.wording import counted

Check = Callable[[Node], str]
"""Returns the fault of a node, or an empty string."""


def fault(node: Node) -> str:
    """The rule that a node breaks, as far as its attributes and the known shapes show; an empty string if there is none."""
    check = CHECKS.get((node.domain, node.op)) or (_window if "kernel_shape" in node.attrs else None)
    return "" if check is None else check(node)


def _shape(value: Value | None) -> Shape:
    """The shape of a value; () if it is unknown."""
    return () if value is None else value.shape or ()


def _permutation(node: Node) -> str:
    perm = node.attr("perm", Ints())
    is_permutation = sorted(perm) == list(range(len(perm)))
    return "" if is_permutation else f"attribute 'perm' is {list(perm)}, must be a permutation of the axes"


_ELEMENTS_PER_AXIS = {"strides": 1, "dilations": 1, "output_padding": 1, "pads": 2}
"""The attributes that place a window, and the number of their elements for each axis of the image."""


def _window(node: Node) -> str:
    kernel = node.attr("kernel_shape", Ints())
    axes = len(kernel) or (len(_shape(node.input(1))) or 2) - 2
    for name, count in _ELEMENTS_PER_AXIS.items() if axes > 0 else ():
        given = node.attr(name, Ints())
        if given and len(given) != count * axes:
            return (
                f"attribute '{name}' has {counted(len(given), 'element')}, must have {count * axes} "
                f"for a window of {counted(axes, 'dimension')}"
            )
    return ""


def _convolution(node: Node) -> str:
    kernel, weights = node.attr("kernel_shape", Ints()), _shape(node.input(1))
    sizes = weights[2:]
    if kernel and weights and (len(kernel) != len(sizes) or _differ(kernel, sizes)):
        return f"attribute 'kernel_shape' is {list(kernel)}, but the weights have the shape {_text(weights)}"
    return _window(node)


def _transposed_convolution(node: Node) -> str:
    added = node.attr("output_padding", Ints())
    ones = (1,) * len(added)
    steps = [*map(max, node.attr("strides", ones), node.attr("dilations", ones))]
    if any(a >= step for a, step in zip(added, steps)):
        return f"attribute 'output_padding' is {list(added)}, must be less than the strides or the dilations"
    return _convolution(node)


def _norm(node: Node) -> str:
    p = node.attr("p", 2)
    return "" if p in (1, 2) else f"attribute 'p' is {p}, must be 1 or 2"


def _split(node: Node) -> str:
    parts = node.attr("num_outputs", len(node.outputs))
    return "" if parts == len(node.outputs) else f"num_outputs is {parts}, but there are {len(node.outputs)} outputs"


def _bias(node: Node) -> str:
    x, bias = _shape(node.input(0)), _shape(node.input(1))
    return f"the bias has the shape {_text(bias)}, must be {_text(x[-1:])}" if x and _differ(x[-1:], bias) else ""


def _heads(node: Node) -> str:
    """A head has two elements for each column of the caches. onnxruntime reads beyond the end of empty heads and dies."""
    shape, columns = _shape(node.input(0)), node.dim(2, 1)
    has_heads = len(shape) == 4 or (len(shape) == 3 and node.attr("num_heads", 0) > 0)
    if has_heads and shape[-1] == 0 and 0 not in shape[:-1] and isinstance(columns, int) and columns > 0:
        return f"the heads are empty, must have {counted(2 * columns, 'element')} for caches of {counted(columns, 'column')}"
    return ""


def _differ(a: Shape, b: Shape) -> bool:
    """True if two shapes have different numbers in one place."""
    return any(isinstance(i, int) and isinstance(j, int) and i != j for i, j in zip(a, b))


def _text(shape: Shape) -> str:
    return f"[{','.join('?' if dim is None else str(dim) for dim in shape)}]"


CHECKS: Mapping[tuple[str, str], Check] = {
    ("", "Conv"): _convolution,
    ("", "ConvInteger"): _convolution,
    ("", "ConvTranspose"): _transposed_convolution,
    ("", "LpNormalization"): _norm,
    ("", "Split"): _split,
    ("", "Transpose"): _permutation,
    (MICROSOFT, "BiasGelu"): _bias,
    (MICROSOFT, "FusedConv"): _convolution,
    (MICROSOFT, "RotaryEmbedding"): _heads,
}
"""The checks by (domain, operator). Nodes of other operators with a kernel_shape have the check of windows."""
