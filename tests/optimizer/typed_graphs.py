"""Random typed models grown step by step. Every value is computed as it is made, so that each step knows types and shapes.

A step is a function of a Builder that reads values made before and adds some. All choices come from one `Random`: hypothesis's,
which shrinks, or a seeded one, which is fast.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortconv.executor.kernels.registry import lookup

LARGEST = 4096
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 100.0)
DENORMAL = 1e-40
SIZES = (1, 2, 3, 4, 6, 8)
Step = Callable[["Builder"], None]


class ImpossibleError(Exception):
    """A step does not fit the values there are."""


@dataclass
class Example:
    """A model with feeds for its inputs; `free` maps symbols to the inputs' axes that they name.

    `defaults` are other values for float initializers that a caller may override.
    """

    proto: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    free: dict[str, list[tuple[str, int]]]
    defaults: dict[str, np.ndarray]


def since_version(domain: str, op: str, opset: int) -> int:
    """The version of an operator's definition at an opset; ImpossibleError where there is none."""
    if domain == "com.microsoft":
        return 1
    try:
        return int(onnx.defs.get_schema(op, 3 if domain else opset, domain).since_version)
    except onnx.defs.SchemaError:
        raise ImpossibleError from None


class Builder:
    """A model in the making, or a subgraph of one, whose outer values are at hand too."""

    kind = ""
    """The type of most quantized values, and the domain of the nodes that make them."""
    domain = ""

    def __init__(self, rng: Random, opset: int, dtype: Any = np.float32, outer: Builder | None = None) -> None:
        self.rng, self.opset, self.dtype, self.outer = rng, opset, np.dtype(dtype), outer
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[str] = []
        self.overridable: list[str] = []
        self.taps: list[str] = []
        self.values: ChainMap[str, np.ndarray] = ChainMap() if outer is None else outer.values.new_child()
        self.made: list[str] = []
        self.names: list[int] = outer.names if outer else [0]

    # ------------------------------------------------------------------ choices

    def chance(self, p: float) -> bool:
        return self.rng.randrange(1000) >= 1000 * (1 - p)

    def pick(self, *options: Any) -> Any:
        return options[self.rng.randrange(len(options))]

    def near(self, usual: Any, *others: Any) -> Any:
        """Nearly always what the rules look for, at times something beside it."""
        return self.pick(*others) if others and self.chance(0.12) else usual

    def seeded(self) -> np.random.Generator:
        return np.random.default_rng(self.rng.randrange(1000))

    def permutation(self, rank: int) -> list[int]:
        left, found = list(range(rank)), []
        while left:
            found.append(left.pop(self.rng.randrange(len(left))))
        return found

    # ------------------------------------------------------------------ values

    def fresh(self, hint: str) -> str:
        self.names[0] += 1
        return f"{hint}{self.names[0]}"

    def array(self, shape: Sequence[int], dtype: Any = None) -> np.ndarray:
        """Small multiples of 1/4, with which most arithmetic is exact."""
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        rng = self.seeded()
        if dtype.kind == "b":
            return np.asarray(rng.random(shape) < 0.5)
        numbers = np.asarray(rng.integers(-8, 9, shape))
        if dtype.kind == "f":
            return np.asarray(numbers / 4).astype(dtype)
        return np.asarray(np.abs(numbers) if dtype.kind == "u" else numbers).astype(dtype)

    def const(self, array: Any, dtype: Any = None) -> str:
        """A constant: mostly an initializer, at times a Constant node, an input's default, or one that is there already."""
        array = np.asarray(array, self.dtype if dtype is None else dtype)
        for tensor in self.constants:
            if self.values[tensor.name].dtype == array.dtype and np.array_equal(self.values[tensor.name], array):
                if self.chance(0.5):
                    return str(tensor.name)
                break
        name = self.fresh("k")
        self.values[name] = array
        if self.chance(0.08):
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name)))
            return name
        self.constants.append(numpy_helper.from_array(array, name))
        if self.outer is None and self.chance(0.02):
            self.overridable.append(name)
        return name

    def weight(self, *shape: int, dtype: Any = None) -> str:
        """A random constant; at times it holds NaN, infinities, zeros or a denormal number."""
        array = self.array(shape, dtype)
        if array.dtype.kind == "f" and array.size and self.chance(0.03):
            with np.errstate(all="ignore"):
                array.reshape(-1)[self.rng.randrange(array.size)] = self.pick(*SPECIAL, DENORMAL)
        return self.const(array, array.dtype)

    def number(self, usual: float, *others: float) -> str:
        """A constant of one element, nearly always the usual one."""
        shape = self.near((), (1,), (1, 1))
        return self.const(np.full(shape, self.near(usual, *(others or (usual * 2, -usual, 0.0, 1.0)))))

    def ints(self, *elements: int, dtype: Any = np.int64) -> str:
        return self.const(np.array(elements, dtype), dtype)

    def input(self, shape: Sequence[int], dtype: Any = None) -> str:
        return self.fed(self.array(shape, dtype))

    def fed(self, array: np.ndarray) -> str:
        """An input that is fed this."""
        if self.outer is not None:
            return self.outer.fed(array)
        name = self.fresh("x")
        self.inputs.append(name)
        self.values[name] = array
        return name

    def known(self, fits: Callable[[np.ndarray], bool]) -> list[str]:
        known = [*([] if self.outer is None else self.outer.known(fits)), *self.inputs, *self.made]
        return [name for name in known if fits(self.values[name])]

    def any(self, fits: Callable[[np.ndarray], bool]) -> str:
        """A value that fits, preferably a late one."""
        found = self.known(fits)
        if not found:
            raise ImpossibleError
        return found[-1 - self.rng.randrange(min(4, len(found)))]

    def x(self, *shape: int, dtype: Any = None) -> str:
        """A value of a shape: one that is there or another input."""
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        found = self.known(lambda a: a.shape == shape and a.dtype == dtype)
        return self.pick(*found[-3:]) if found and self.chance(0.7) else self.input(shape, dtype)

    def float(self, ranks: Sequence[int] = (0, 1, 2, 3, 4)) -> str:
        """A float value of one of the ranks."""
        found = self.known(lambda a: a.dtype == self.dtype and a.ndim in ranks)
        if found and self.chance(0.75):
            return found[-1 - self.rng.randrange(min(3, len(found)))]
        rank = self.pick(*ranks)
        return self.input([self.near(self.pick(*SIZES), 0) if rank else 1 for _ in range(rank)])

    def axis(self, axis: int, rank: int) -> int:
        """The axis, at times counted from the end, which not all operators know before opset 11."""
        return axis - self.pick(0, rank) if self.opset >= 11 else axis

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    # ------------------------------------------------------------------ nodes

    def op(self, op: str, *inputs: str, domain: str = "", **attrs: Any) -> str:
        """A node with one output, evaluated. ImpossibleError where it has no result or a large one."""
        return self.several(op, 1, *inputs, domain=domain, **attrs)[0]

    def several(self, op: str, outputs: int, *inputs: str, domain: str = "", **attrs: Any) -> list[str]:
        attrs = {k: v for k, v in attrs.items() if v is not None}
        results = self._evaluate(domain, op, inputs, attrs, outputs)
        names = [self.fresh("v") for _ in range(outputs)]
        stored = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attrs.items()}
        node_name = "" if self.chance(0.05) else self.fresh("n")
        self.nodes.append(helper.make_node(op, list(inputs), names, name=node_name, domain=domain, **stored))
        self.values.update(zip(names, results, strict=True))
        self.made += names
        if self.chance(0.01):
            self.taps.append(names[0])
        if op != "Identity" and self.chance(0.008):
            names[0] = self.op("Identity", names[0])
        return names

    def _evaluate(
        self, domain: str, op: str, inputs: Sequence[str], attrs: dict[str, Any], outputs: int
    ) -> list[np.ndarray]:
        found = lookup(domain, op, since_version(domain, op, self.opset))
        if found is None:
            raise ImpossibleError
        extra = {"n_outputs": outputs} if found.wants_n_outputs else {}
        arrays = [self.values[name] if name else None for name in inputs]
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
        try:
            with np.errstate(all="ignore"):
                results = found.reference(*arrays, **given, **extra)
        except Exception:
            raise ImpossibleError from None
        results = [np.asarray(r) for r in (results if isinstance(results, tuple) else (results,))][:outputs]
        if len(results) < outputs or any(r.size > LARGEST for r in results):
            raise ImpossibleError
        return results

    def branch(self) -> Builder:
        """A subgraph that can read what is here."""
        if self.outer is not None and self.outer.outer is not None:
            raise ImpossibleError
        return Builder(self.rng, self.opset, self.dtype, self)

    def closed(self, outputs: Sequence[str], inputs: Sequence[onnx.ValueInfoProto] = ()) -> onnx.GraphProto:
        """The subgraph with its outputs; those that are not its own are passed on."""
        own = [v if v in self.made and outputs.count(v) == 1 else self.op("Identity", v) for v in outputs]
        infos = [self._info(name, None) for name in own]
        return helper.make_graph(self.nodes, self.fresh("body"), list(inputs), infos, self.constants)

    def grow(self, steps: Sequence[Step], count: int) -> None:
        """Take so many steps; one that does not fit leaves nothing behind."""
        for _ in range(count):
            nodes, made, taps = len(self.nodes), len(self.made), len(self.taps)
            try:
                self.pick(*steps)(self)
            except (ImpossibleError, ValueError, IndexError):
                del self.nodes[nodes:], self.made[made:], self.taps[taps:]

    # ------------------------------------------------------------------ the whole

    def _info(self, name: str, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(self.values[name].dtype), shape)

    def example(self) -> Example:
        """The model; values that nothing reads are its outputs, and some others."""
        read = {v for node in self.nodes for v in _reads(node)}
        loose = [v for v in self.made if v not in read]
        outputs = list(dict.fromkeys([*loose, *(t for t in self.taps if t in self.made)]))
        if not outputs:
            raise ImpossibleError
        inputs = [name for name in self.inputs if name in read] or self.inputs[:1]
        free: dict[str, list[tuple[str, int]]] = {}
        infos = [self._info(name, self._symbols(name, free)) for name in inputs]
        infos += [self._info(name, self.shape(name)) for name in self.overridable if name in read]
        constants = [t for t in self.constants if t.name in read]
        graph = helper.make_graph(self.nodes, "g", infos, [self._info(v, None) for v in outputs], constants)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        imports.append(helper.make_opsetid("ai.onnx.ml", 3))
        proto = helper.make_model(graph, opset_imports=imports, ir_version=8 if self.opset < 19 else 10)
        others = {v: self.values[v] + 1 for v in self.overridable if v in read and self.values[v].dtype.kind == "f"}
        return Example(proto, {name: self.values[name] for name in inputs}, free, others)

    def _symbols(self, name: str, free: dict[str, list[tuple[str, int]]]) -> list[Any]:
        dims: list[Any] = list(self.shape(name))
        if self.chance(0.5):
            return dims
        for axis, size in enumerate(dims):
            if size and self.chance(0.5):
                symbol = self.pick(f"s{size}", f"s{size}", f"{name}_{axis}", None)
                dims[axis] = symbol
                free.setdefault(symbol or f"{name}_{axis}", []).append((name, axis))
        return dims


def _reads(node: onnx.NodeProto) -> set[str]:
    found = set(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            found |= _reads(inner)
    return found


def product(dims: Sequence[int]) -> int:
    return math.prod(dims)


def value_info(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


# ---------------------------------------------------------------------- operators whose form depends on the opset


def reduced(b: Builder, op: str, x: str, axes: Sequence[int], keepdims: int = 1) -> str:
    if not b.values[x].size:
        raise ImpossibleError  # onnxruntime keeps the size of a reduced axis then
    if b.opset >= (13 if op == "ReduceSum" else 18):
        return b.op(op, x, b.ints(*axes), keepdims=keepdims)
    return b.op(op, x, axes=list(axes), keepdims=keepdims)


def squeezed(b: Builder, op: str, x: str, *axes: int) -> str:
    """Squeeze or Unsqueeze."""
    return b.op(op, x, b.ints(*axes)) if b.opset >= 13 else b.op(op, x, axes=list(axes))


def sliced(b: Builder, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
    if b.opset >= 10:
        return b.op("Slice", x, b.ints(start), b.ints(end), b.ints(axis), *([b.ints(step)] if step != 1 else []))
    if step != 1:
        raise ImpossibleError
    return b.op("Slice", x, starts=[start], ends=[end], axes=[axis])


def clipped(b: Builder, x: str, low: float | None, high: float | None) -> str:
    if b.opset < 11:
        return b.op("Clip", x, min=low, max=high)
    bounds = ["" if v is None else b.const(v) for v in (low, high)]
    return b.op("Clip", x, *(bounds if bounds[1] else bounds[:1] if bounds[0] else []))


def padded(b: Builder, x: str, pads: Sequence[int], value: float = 0.0, mode: str = "constant") -> str:
    if b.opset < 11:
        return b.op("Pad", x, pads=list(pads), value=value, mode=mode)
    return b.op("Pad", x, b.ints(*pads), *([b.const(value)] if value or b.chance(0.5) else []), mode=mode)


def split(b: Builder, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
    if b.opset < 13:
        return b.several("Split", len(sizes), x, axis=axis, split=list(sizes))
    if len(set(sizes)) == 1 and b.chance(0.4):
        return b.several("Split", len(sizes), x, axis=axis, num_outputs=len(sizes) if b.opset >= 18 else None)
    return b.several("Split", len(sizes), x, b.ints(*sizes), axis=axis)
