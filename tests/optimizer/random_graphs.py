"""Random models of the operators that the basic level knows, valid by construction, for comparisons with onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, -0.0, 3.0)
LARGEST = 4096


@dataclass
class Builder:
    """Grows a model: each step reads values made before, whose shapes are known, and adds one or more."""

    draw: Callable[[Any], Any]
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def random(self, *shape: int) -> str:
        seed = self.draw(st.integers(0, 1000))
        return self.constant(np.random.default_rng(seed).integers(-4, 5, shape) / 4)

    def node(self, op: str, inputs: list[str], **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n{len(self.nodes)}", **attrs))
        return name

    def value(self, rank: int | None = None) -> tuple[str, tuple[int, ...]] | None:
        """A value made before, preferably a late one."""
        known = [v for v, s in self.shapes.items() if rank is None or len(s) == rank]
        if not known:
            return None
        name = known[-1 - self.draw(st.integers(0, min(2, len(known) - 1)))]
        return name, self.shapes[name]

    def add(self, name: str, shape: tuple[int, ...]) -> None:
        if math.prod(shape) <= LARGEST:
            self.shapes[name] = shape


def unary(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    op = b.pick("Relu", "Neg", "Identity", "Tanh", "Dropout", "Relu", "Identity")
    b.add(b.node(op, [x]), shape)


def clip(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    low, high = (b.constant(v) if (v := b.pick(None, *NUMBERS)) is not None else "" for _ in range(2))
    b.add(b.node("Clip", [x, low, high] if high else [x, low] if low else [x]), shape)


def with_constant(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    rank = b.draw(st.integers(0, len(shape)))
    dims = tuple(b.pick(1, d) for d in shape[len(shape) - rank :])
    op = b.pick("Add", "Sub", "Mul", "Div")
    filled = b.pick(True, False)
    array = np.full(dims, b.pick(*NUMBERS)) if filled else np.random.default_rng(len(b.nodes)).choice(NUMBERS, dims)
    if op == "Div":
        array = np.where(array == 0, 1, array)
    k = b.constant(array)
    swapped = op != "Div" and b.pick(True, False)
    b.add(b.node(op, [k, x] if swapped else [x, k]), shape)


def two(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    others = [v for v, s in b.shapes.items() if s == shape]
    b.add(b.node(b.pick("Add", "Sub"), [x, b.pick(*others)]), shape)


def factors(b: Builder, size: int) -> tuple[int, ...]:
    dims: list[int] = []
    while size > 1 and len(dims) < 3:
        d = b.pick(*[d for d in range(1, size + 1) if size % d == 0])
        dims.append(d)
        size //= d
    return (*dims, size)


def reshape(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    dims = factors(b, math.prod(shape))
    kind = b.pick("constant", "left over", "computed")
    if kind == "computed" and shape:
        axis = b.draw(st.integers(0, len(shape) - 1))
        rest = factors(b, math.prod(shape) // shape[axis])
        place = b.draw(st.integers(0, len(rest)))
        dims = (*rest[:place], shape[axis], *rest[place:])
        taken = b.node("Gather", [b.node("Shape", [x]), b.constant(axis, np.int64)])
        one = b.node("Unsqueeze", [taken, b.constant([0], np.int64)])
        parts = [b.constant(rest[:place], np.int64), one, b.constant(rest[place:], np.int64)]
        target = b.node("Concat", parts, axis=0)
    else:
        spec = list(dims)
        if kind == "left over":
            spec[b.draw(st.integers(0, len(dims) - 1))] = -1
        spec = [0 if i < len(shape) and d == shape[i] and b.pick(True, False) else d for i, d in enumerate(spec)]
        target = b.constant(spec, np.int64)
    b.add(b.node("Reshape", [x, target]), dims)


def squeeze(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    ones = [i for i, d in enumerate(shape) if d == 1]
    kind = b.pick("Squeeze", "Unsqueeze", "Flatten")
    if kind == "Squeeze" and ones:
        axis = b.pick(*ones)
        b.add(b.node(kind, [x, b.constant([axis], np.int64)]), shape[:axis] + shape[axis + 1 :])
    elif kind == "Unsqueeze" and len(shape) < 5:
        axis = b.draw(st.integers(0, len(shape)))
        b.add(b.node(kind, [x, b.constant([axis], np.int64)]), (*shape[:axis], 1, *shape[axis:]))
    else:
        axis = b.draw(st.integers(0, len(shape)))
        b.add(b.node("Flatten", [x], axis=axis), (math.prod(shape[:axis]), math.prod(shape[axis:])))


def transpose(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    perm = b.draw(st.permutations(range(len(shape))))
    b.add(b.node("Transpose", [x], perm=perm), tuple(shape[i] for i in perm))


def cut(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    if not shape:
        return
    axis = b.draw(st.integers(0, len(shape) - 1))
    start, end = b.pick((0, 2**63 - 1), (0, shape[axis]), (-shape[axis], 2**31 - 1), (0, 1))
    inputs = [x, *(b.constant([v], np.int64) for v in (start, end, axis))]
    length = 1 if end == 1 else shape[axis]
    b.add(b.node("Slice", inputs), (*shape[:axis], length, *shape[axis + 1 :]))


def there_and_back(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    wide = b.node("Cast", [x], to=TensorProto.DOUBLE)
    b.add(b.node("Cast", [wide], to=TensorProto.FLOAT), shape)


def expand(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    target = b.pick((1,) * len(shape), shape)
    b.add(b.node("Expand", [x, b.constant(target, np.int64)]), shape)


def product(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    if len(shape) < 2:
        return
    columns = b.pick(1, 2, 3)
    y = b.node("MatMul", [x, b.random(shape[-1], columns)])
    bias = b.random(*b.pick((), (columns,), (1, columns)))
    b.add(b.node("Add", b.pick([y, bias], [bias, y])), (*shape[:-1], columns))


def gemm(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        return
    flip, columns = b.pick(0, 1), 3
    inner, rows = (shape[0], shape[1]) if flip else (shape[1], shape[0])
    inputs = [x, b.random(inner, columns), *b.pick([], [b.random(columns)])]
    b.add(b.node("Gemm", inputs, transA=flip, alpha=b.pick(1.0, 0.5)), (rows, columns))


def convolution(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    if len(shape) < 3:
        return
    spatial = len(shape) - 2
    inputs = [x, b.random(2, shape[1], *([1] * spatial)), *b.pick([], [b.random(2)])]
    b.add(b.node("Conv", inputs), (shape[0], 2, *shape[2:]))


def normalization(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    if len(shape) < 2:
        return
    c = shape[1]
    inputs = [x, b.random(c), b.random(c), b.random(c), b.constant(np.arange(1, c + 1) / 2)]
    b.add(b.node("BatchNormalization", inputs), shape)


def pooling(b: Builder, x: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 4:
        return
    value = b.pick(0.0, -np.inf)
    padded = b.node("Pad", [x, b.constant([0, 0, 1, 0, 0, 0, 0, 1], np.int64), b.constant(value)])
    op = "MaxPool" if value else b.pick("MaxPool", "AveragePool")
    b.add(b.node(op, [padded], kernel_shape=[2, 2]), shape)


STEPS: tuple[Callable[[Builder, str, tuple[int, ...]], None], ...] = (
    unary, clip, with_constant, with_constant, two, reshape, reshape, squeeze, squeeze, transpose, cut, there_and_back,
    expand, product, product, gemm, convolution, convolution, normalization, pooling,
)  # fmt: skip


@st.composite
def models(draw: Callable[[Any], Any]) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A model with one to three outputs, and a value for its input, whose first dimensions may be symbols."""
    b = Builder(draw)
    shape = draw(st.sampled_from([(2, 3, 4, 2), (1, 3, 2, 2), (6, 4), (2, 3, 4), (1, 6), (3, 1, 4)]))
    b.shapes["x"] = shape
    for _ in range(draw(st.integers(2, 14))):
        found = b.value()
        assert found is not None
        draw(st.sampled_from(STEPS))(b, *found)
    made = [v for v in b.shapes if v != "x"]
    if not made:
        b.add(b.node("Neg", ["x"]), shape)
        made = [v for v in b.shapes if v != "x"]
    outputs = {made[-1], *draw(st.lists(st.sampled_from(made), max_size=2))}
    symbols = draw(st.integers(0, 2))
    declared = [f"d{i}" if i < symbols else d for i, d in enumerate(shape)]
    graph = helper.make_graph(
        b.nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, declared)],
        [helper.make_tensor_value_info(v, TensorProto.FLOAT, [None] * len(b.shapes[v])) for v in sorted(outputs)],
        b.constants,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", draw(st.sampled_from([13, 17, 18])))])
    proto.ir_version = 8
    x = np.random.default_rng(draw(st.integers(0, 1000))).normal(size=shape).astype(np.float32)
    return proto, {"x": x}
