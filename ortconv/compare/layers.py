"""Compares two graphs value by value, in memory that does not grow with the graphs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np

from ortconv.compare.measure import Measure, measure
from ortconv.compare.pairs import are_single, changed_form
from ortconv.compare.tolerance import Allowance
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operands import only_reader
from ortconv.ir.tensor import Array
from ortconv.stream import stream

IN_MEMORY = 256 << 20
"""Bytes of values that wait in memory for their counterpart; the rest waits on disk."""


@dataclass(frozen=True, slots=True)
class ComparedLayer:
    """A value that both graphs have: its names in both, its producer, the distance, and the permitted distance. `floor` is an
    absolute difference that does not matter.
    """

    name: str
    other: str
    node: Node
    found: Measure
    limit: float
    floor: float
    permuted: bool = False
    """True if both have the same elements in another order, for example after a change of layout."""

    @property
    def same(self) -> bool:
        return self.permuted or self.found.within(self.limit, self.floor)


def compare_layers(
    first: Graph,
    second: Graph,
    backends: tuple[Sequence[str], Sequence[str]],
    feeds: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
    custom_op_library: Path | None = None,
) -> Iterator[ComparedLayer]:
    """Compare every value that nodes of both graphs produce, in the second graph's order. `names` maps names in the first graph to
    names in the second.

    Left out are unused values, values that a backend never computes, and values whose shape or type differs from their counterpart,
    since these mean something else. Outputs are always compared. A value that only the second graph quantizes is compared after
    DequantizeLinear: onnxruntime's quantizer removes a Relu or Clip where the quantization limits the value in the same way.
    """
    made = _used(second)
    names = names if names is not None else {name: name for name in made}
    counterparts = _counterparts(first, names, made)
    wanted = {name for group in counterparts.values() for name, _ in group}
    allowance, counted = Allowance(), set[Node]()
    with TemporaryFile() as file:
        source = _Lookup(stream(first, backends[0], feeds, custom_op_library), wanted, file)
        for value, got in stream(second, backends[1], feeds, custom_op_library):
            node = value.producer
            assert node is not None
            if node not in counted:
                counted.add(node)
                allowance.add(node)
            for name, compared in counterparts.get(value.name, ()):
                layer = _compared(name, source.take(name), compared, got, allowance)
                if layer is not None:
                    yield layer


def _used(graph: Graph) -> dict[str, Value]:
    """The values that nodes make and that are read or returned, by name."""
    return {v.name: v for node in graph for v in node.present_outputs if v.is_used}


def _compared(name: str, want: Any, value: Value, got: Any, allowance: Allowance) -> ComparedLayer | None:
    """The comparison of a value with its counterpart; None if one is unknown, or if they mean something else."""
    node = value.producer
    if want is None or got is None or node is None:
        return None
    found = measure(want, got)
    if found.mismatch is not None and not value.is_output and _differ_in_kind(want, got):
        return None
    limit, floor = allowance.limit, allowance.floor(value)
    permuted = not found.within(limit, floor) and _is_permuted(want, got)
    return ComparedLayer(name, value.name, node, found, limit, floor, permuted)


def _counterparts(
    first: Graph, names: Mapping[str, str], made: Mapping[str, Value]
) -> dict[str, list[tuple[str, Value]]]:
    """For each name of a value to compute in the second graph: pairs of a name in the first graph and the value to report. The
    computed value is the dequantized form of the reported one, or the same value.
    """
    found: dict[str, list[tuple[str, Value]]] = {}
    for value in (v for node in first for v in node.present_outputs):
        other = made.get(names.get(value.name, ""))
        if other is not None:
            computed = other if _dequantized(value) else _dequantized(other) or other
            found.setdefault(computed.name, []).append((value.name, other))
    return found


def _dequantized(value: Value) -> Value | None:
    """The form in which a value is read, if it is only quantized and dequantized."""
    quantizer = only_reader(value)
    if quantizer is None or quantizer.op != "QuantizeLinear" or quantizer.input(0) is not value:
        return None
    readers = (
        node for node, _ in quantizer.out.uses if node.op == "DequantizeLinear" and node.graph is quantizer.graph
    )
    return next((node.out for node in readers), None)


class Loss(NamedTuple):
    """A layer with a difference, and the largest scaled distance among the layers that it is computed from."""

    layer: ComparedLayer
    before: float

    @property
    def added(self) -> float:
        return _scaled(self.layer) - self.before if math.isfinite(self.before) else 0.0


def largest_loss(layers: Sequence[ComparedLayer]) -> Loss | None:
    """The layer that adds most to the scaled distance, which is infinite if NaN or infinity appear; None if no layer differs."""
    known = {layer.other: layer for layer in layers}
    losses = [Loss(one, max(map(_scaled, _before(one.node, known)), default=0.0)) for one in layers if not one.same]
    return max(losses, key=lambda loss: loss.added, default=None)


def _scaled(layer: ComparedLayer) -> float:
    if layer.found.mismatch is not None:
        return math.inf
    return 0.0 if layer.permuted or math.isnan(layer.found.scaled) else layer.found.scaled


def _before(node: Node, known: Mapping[str, ComparedLayer]) -> Iterator[ComparedLayer]:
    """The nearest layers that a node is computed from; values that are no layers are passed through."""
    waiting, seen = [node], {node}
    for one in waiting:
        for value in one.present_reads:
            if value.name in known:
                yield known[value.name]
            elif value.producer is not None and value.producer not in seen:
                seen.add(value.producer)
                waiting.append(value.producer)


class _Lookup:
    """Values of a stream by name, in any order. Each wanted value can be read once."""

    def __init__(self, values: Iterator[tuple[Value, Any]], wanted: Collection[str], file: Any) -> None:
        self._values = values
        self._wanted = wanted
        self._waiting: dict[str, Any] = {}
        self._bytes = 0
        self._file = file

    def take(self, name: str) -> Any:
        """The value with this name. Values that come before it are stored until they are requested, on disk if they are large."""
        while name not in self._waiting:
            value, result = next(self._values)
            if value.name == name:
                return result
            if value.name in self._wanted:
                self._put(value.name, result)
        kept = self._waiting.pop(name)
        if isinstance(kept, _OnDisk):
            return kept.read()
        self._bytes -= getattr(kept, "nbytes", 0)
        return kept

    def _put(self, name: str, result: Any) -> None:
        size = getattr(result, "nbytes", 0)
        if self._bytes + size > IN_MEMORY and isinstance(result, np.ndarray) and result.dtype != object:
            self._waiting[name] = _OnDisk.write(self._file, result)
        else:
            self._waiting[name] = result
            self._bytes += size


@dataclass(frozen=True, slots=True)
class _OnDisk:
    file: Any
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def write(cls, file: Any, array: Array) -> _OnDisk:
        offset = file.seek(0, 2)
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return cls(file, offset, array.dtype, array.shape)

    def read(self) -> Array:
        self.file.seek(self.offset)
        count = int(np.prod(self.shape))
        return np.frombuffer(self.file.read(count * self.dtype.itemsize), self.dtype).reshape(self.shape)


def _differ_in_kind(want: Any, got: Any) -> bool:
    if not are_single(want, got):
        return type(want) is not type(got)
    return changed_form(np.asarray(want), np.asarray(got)) is not None


def _is_permuted(want: Any, got: Any) -> bool:
    """True for arrays with the same elements in another order, apart from rounding."""
    if not isinstance(want, np.ndarray) or not isinstance(got, np.ndarray) or want.ndim < 3 or want.dtype.kind != "f":
        return False
    if want.shape != got.shape or want.size < 2:
        return False
    a, b = np.sort(want, axis=None).astype(np.float64), np.sort(got, axis=None).astype(np.float64)
    with np.errstate(all="ignore"):
        return bool(np.allclose(a, b, rtol=1e-4, atol=1e-6 * max(1e-30, float(np.abs(a).max())), equal_nan=True))
