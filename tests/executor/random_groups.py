"""Random graphs of what the executor runs as one: elementwise chains, products, and quantizers between them.

Values are shared, outputs of the graph, scalars, of one element in any rank, or constant, wherever an operator takes them so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from draw import Draw
from onnx import TensorProto, helper, numpy_helper

FLOATS = {
    np.float32: TensorProto.FLOAT,
    np.float16: TensorProto.FLOAT16,
    np.float64: TensorProto.DOUBLE,
    ml_dtypes.bfloat16: TensorProto.BFLOAT16,
}
MICROSOFT = "com.microsoft"
SHAPES = ((), (1,), (6,), (3, 5), (1, 1), (0, 4), (2, 0), (2, 3, 8), (1, 4, 5, 5), (40, 64), (2, 4, 24, 24))
UNARY = (
    "Abs", "Erf", "Exp", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Neg", "Relu", "Sigmoid", "Sqrt",
    "Tanh",
)  # fmt: skip
WEIGHTS = 0.0107
"""The scale of quantized weights. Products of scales are no halves of one another, where sums would round either way."""
BINARY = ("Add", "Mul", "Sub")


class Graph:
    """A graph that grows by random nodes. `values` are the shapes of its values by name."""

    def __init__(self, d: Draw, dtype: Any, quantized: bool, dynamic: bool = False) -> None:
        self.d, self.dtype, self.quantized, self.dynamic = d, dtype, quantized, dynamic
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.inputs: dict[str, np.ndarray] = {}
        self.shape = d.pick(*SHAPES)
        self.values: dict[str, tuple[int, ...]] = {}
        for _ in range(d.number(1, 3)):
            self.feed(self.shape)
        for _ in range(d.number(2, 7)):
            self.grow()

    def feed(self, shape: Sequence[int]) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.d.floats(shape, self.dtype)
        self.values[name] = tuple(shape)
        return name

    def constant(self, array: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def number(self, value: float) -> str:
        """A constant of one element, in a rank of its own."""
        rank = self.d.pick(0, 0, 0, 1, 1, len(self.shape))
        return self.constant(np.full((1,) * rank, value, self.dtype))

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The name of what a node makes, or of what comes of it between quantizers."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return self.rounded(name) if self.quantized and self.d.chance(0.4) else name

    def rounded(self, name: str) -> str:
        """A value between quantizers, of which it may have several."""
        scale, zero = (
            np.float32(self.d.pick(0.0213, 0.0517, 0.1031)),
            self.d.pick(np.uint8(128), np.int8(0), np.int8(-3)),
        )
        parameters = [self.constant(self.shaped(scale)), self.constant(zero)]
        if self.constants[parameters[0]].ndim:
            self.constants[parameters[1]] = zero.reshape(1)
        codes = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [codes]))
        for _ in range(self.d.pick(1, 1, 1, 2)):
            made = f"v{len(self.nodes)}"
            self.nodes.append(helper.make_node("DequantizeLinear", [codes, *parameters], [made]))
        return made

    def shaped(self, scale: np.float32) -> np.ndarray:
        return scale.reshape(1) if self.d.chance(0.2) else np.asarray(scale)

    def some(self) -> str:
        return str(self.d.pick(*self.values))

    def operand(self, shape: tuple[int, ...]) -> str:
        """A value, a constant or an input that broadcasts with one of a shape."""
        fitting = [name for name, other in self.values.items() if _fit(shape, other)]
        match self.d.pick("value", "value", "number", "constant", "input"):
            case "value" if fitting:
                return str(self.d.pick(*fitting))
            case "constant":
                return self.constant(self.d.floats(self.d.broadcastable(shape), self.dtype) + self.dtype(2))
            case "input":
                return self.feed(self.d.pick((), (1,), self.d.broadcastable(shape)))
        return self.number(self.d.pick(0.5, 1.0, 2.0, 1.702))

    def either_way(self, op: str, a: str, b: str) -> str:
        return self.node(op, *((a, b) if self.d.chance() else (b, a)))

    def grow(self) -> None:
        x = self.some()
        step: Callable[[str, tuple[int, ...]], tuple[str, tuple[int, ...]] | None] = self.d.pick(*STEPS)
        made = step(self, x, self.values[x])  # type: ignore[call-arg, arg-type]
        if made is not None:
            name, shape = made
            self.values[name] = shape

    def declared(self, name: str, shape: tuple[int, ...]) -> list[int | str]:
        """What the model says of the shape of an input: symbols, if the graph is dynamic."""
        return [f"{name}_{axis}" if self.dynamic else n for axis, n in enumerate(shape)]

    def model(self) -> onnx.ModelProto:
        kind = FLOATS[self.dtype]
        read = {name for node in self.nodes for name in node.input}
        made = [n for n in self.values if n not in self.inputs]
        outputs = [n for n in made if n not in read or self.d.chance(0.1)] or made[-1:]
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(n, kind, self.declared(n, x.shape)) for n, x in self.inputs.items()],
            [helper.make_tensor_value_info(n, kind, None) for n in outputs],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


Made = tuple[str, tuple[int, ...]] | None


def _unary(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    op = g.d.pick(*(op for op in UNARY if g.dtype is not ml_dtypes.bfloat16 or op not in ("HardSigmoid", "HardSwish")))
    return g.node(op, g.node("Abs", x) if op == "Sqrt" else g.node("Tanh", x) if op == "Exp" else x), shape


def _binary(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    if g.d.chance(0.2):
        divisor = g.number(3.0)
        return g.node("Div", x, divisor), _joint(g, shape, divisor)
    other = g.operand(shape)
    made = g.values[other] if other in g.values else g.constants[other].shape
    return g.either_way(g.d.pick(*BINARY), x, other), np.broadcast_shapes(shape, made)


def _joint(g: Graph, shape: tuple[int, ...], *numbers: str) -> tuple[int, ...]:
    """The shape of what is computed of a value and of constants."""
    return np.broadcast_shapes(shape, *(g.constants[n].shape for n in numbers if n in g.constants))


def _gelu(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    numbers = [g.number(2**0.5), g.number(1.0), g.number(0.5)]
    inner = g.node("Erf", g.node("Div", x, numbers[0]))
    one_more = g.either_way("Add", inner, numbers[1])
    if g.d.chance():
        return g.either_way("Mul", g.either_way("Mul", x, one_more), numbers[2]), _joint(g, shape, *numbers)
    return g.either_way("Mul", g.either_way("Mul", x, numbers[2]), one_more), _joint(g, shape, *numbers)


def _gelu_by_tanh(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    numbers = [g.number(3.0), g.number(0.044715), g.number((2 / np.pi) ** 0.5), g.number(1.0), g.number(0.5)]
    cube = g.node("Pow", x, numbers[0])
    inner = g.either_way("Mul", g.either_way("Add", x, g.either_way("Mul", cube, numbers[1])), numbers[2])
    one_more = g.either_way("Add", g.node("Tanh", inner), numbers[3])
    return g.either_way("Mul", g.either_way("Mul", x, numbers[4]), one_more), _joint(g, shape, *numbers)


def _swish(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    is_hard = g.dtype is not ml_dtypes.bfloat16 and g.d.chance()
    gate = g.node("HardSigmoid", x, alpha=1 / 6, beta=0.5) if is_hard else g.node("Sigmoid", x)
    return g.either_way("Mul", x, gate), shape


def _standard_scores(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    if not shape:
        return None
    numbers = [g.number(2.0), g.number(1e-2)]
    centered = g.node("Sub", x, g.node("ReduceMean", x, axes=[-1]))
    squares = g.node("Mul", centered, centered) if g.d.chance() else g.node("Pow", centered, numbers[0])
    deviation = g.node("Sqrt", g.node("Add", g.node("Abs", g.node("ReduceMean", squares, axes=[-1])), numbers[1]))
    return g.node("Div", centered, deviation), _joint(g, shape, *numbers)


def _softmax(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    return (g.node("Softmax", x, axis=g.d.pick(-1, 0)), shape) if shape else None


def _normalized(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    if not shape:
        return None
    scale, shift = (g.constant(g.d.floats(shape[-1:], g.dtype)) for _ in range(2))
    return g.node("LayerNormalization", x, scale, *([shift] if g.d.chance() else [])), shape


def _limited(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    return g.node("Clip", x, g.constant(g.dtype(-1)), *([g.constant(g.dtype(2))] if g.d.chance() else [])), shape


def _weights(g: Graph, shape: tuple[int, ...]) -> str:
    array = g.d.floats(shape, g.dtype, 0.3)
    if not g.quantized or g.d.chance(0.3):
        return g.constant(array)
    codes = np.clip(np.rint(array.astype(np.float32) / WEIGHTS), -127, 127).astype(np.int8)
    parameters = [g.constant(np.float32(WEIGHTS)), g.constant(np.int8(0))]
    name = f"v{len(g.nodes)}"
    g.nodes.append(helper.make_node("DequantizeLinear", [g.constant(codes), *parameters], [name]))
    return name


def _product(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    if not shape:
        return None
    x = g.rounded(x) if g.quantized else x
    if len(shape) == 2 and g.d.chance():
        bias = [g.constant(g.d.floats(g.d.pick((), (1,), (7,)), g.dtype))] if g.d.chance() else []
        return g.node("Gemm", x, _weights(g, (shape[1], 7)), *bias), (shape[0], 7)
    return g.node("MatMul", x, _weights(g, (shape[-1], 6))), (*shape[:-1], 6)


def _convolution(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    if len(shape) != 4 or g.dtype is ml_dtypes.bfloat16:
        return None
    x = g.rounded(x) if g.quantized else x
    size, channels = g.d.pick((1, 6), (3, 6), (3, shape[1])), shape[1]
    groups = channels if size == (3, channels) else 1
    weights = _weights(g, (size[1], channels // groups, size[0], size[0]))
    bias = [g.constant(g.d.floats((size[1],), g.dtype))] if g.d.chance() else []
    made = g.node("Conv", x, weights, *bias, group=groups, pads=[size[0] // 2] * 4)
    return made, (shape[0], size[1], *shape[2:])


def _turned(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    order = g.d.rng.permutation(len(shape)).tolist()
    return (g.node("Transpose", x, perm=order), tuple(shape[i] for i in order)) if shape else None


def _of_microsoft(g: Graph, x: str, shape: tuple[int, ...]) -> Made:
    op = g.d.pick("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "SkipLayerNormalization")
    if op in ("Gelu", "QuickGelu"):
        return g.node(op, x, domain=MICROSOFT), shape
    if not shape or (op == "SkipLayerNormalization" and len(shape) != 3):
        return None
    bias = g.constant(g.d.floats(shape[-1:], g.dtype))
    if op != "SkipLayerNormalization":
        return g.node(op, x, bias, domain=MICROSOFT), shape
    skip = g.feed(shape)
    return g.node(op, x, skip, g.constant(g.d.floats(shape[-1:], g.dtype)), bias, domain=MICROSOFT), shape


STEPS = (
    _unary, _unary, _binary, _binary, _binary, _gelu, _gelu_by_tanh, _swish, _standard_scores, _softmax, _normalized, _limited,
    _product, _convolution, _turned, _of_microsoft,
)  # fmt: skip


def _fit(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True
