"""Estimates the time that a partition saves, from bytes copied, bytes accessed and multiply-adds. docs/cost.md has the formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.types import DType
from ortconv.partition.partitioner import Partition, Partitioning
from ortconv.partition.profile import DeviceProfile, Speed

ASSUMPTIONS = (
    "a node takes the longer of its multiply-adds and its bytes at the speeds of the profile",
    "a partition adds one start and a copy of every tensor that crosses its border",
    "nodes run one after the other; caches, fusions and the vendor's own compiler are not modeled",
    "unknown dimensions count as 1; subgraphs count once",
    "QDQ groups count as one 8-bit operator each",
)
"""Assumptions of the estimate."""


# ---------------------------------------------------------------------- work


def elements(value: Value | None) -> int:
    """The number of elements of a tensor; unknown dimensions count as 1, an unknown rank as a scalar."""
    shape = None if value is None else value.shape
    return 0 if value is None else math.prod(d if isinstance(d, int) else 1 for d in shape or ())


def size(value: Value | None) -> int:
    """The size of a tensor in bytes, with dimensions counted as in elements()."""
    bits = 0 if value is None or value.dtype is None else value.dtype.bits
    return (elements(value) * bits + 7) // 8


def _dim(value: Value | None, axis: int) -> int:
    dim = None if value is None else value.dim(axis)
    return dim if isinstance(dim, int) else 1


def _conv(slot: int) -> Callable[[Node], int]:
    """Multiply-adds of a convolution: per output element, the elements of one filter. `slot` is the input with the weights."""
    return lambda n: elements(n.output(0)) * (elements(n.input(slot)) // max(_dim(n.input(slot), 0), 1))


def _transposed_conv(node: Node) -> int:
    """Multiply-adds of a transposed convolution: per input element, the weights of its channel."""
    return elements(node.input(0)) * (elements(node.input(1)) // max(_dim(node.input(1), 0), 1))


def _product(node: Node) -> int:
    """Multiply-adds of a matrix product: per output element, the inner dimension."""
    return elements(node.output(0)) * _dim(node.input(0), -2 if node.attr("transA", 0) else -1)


def _recurrent(node: Node) -> int:
    """Multiply-adds of a recurrent operator: all input and recurrent weights once per time step and batch element."""
    steps, batch = _dim(node.input(0), 0), _dim(node.input(0), 1)
    return steps * batch * (elements(node.input(1)) + elements(node.input(2)))


MULTIPLY_ADDS: dict[str, Callable[[Node], int]] = {
    "Conv": _conv(1), "FusedConv": _conv(1), "ConvInteger": _conv(1), "QLinearConv": _conv(3),
    "ConvTranspose": _transposed_conv,
    "MatMul": _product, "FusedMatMul": _product, "MatMulInteger": _product, "DynamicQuantizeMatMul": _product,
    "MatMulIntegerToFloat": _product, "QLinearMatMul": _product, "Gemm": _product, "FusedGemm": _product,
    "QGemm": _product, "TransposeMatMul": _product,
    "LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent,
}  # fmt: skip
"""The number of multiply-adds by operator, for operators whose time depends on it. For all others, only the bytes are counted."""


def multiply_adds(node: Node) -> int:
    """The multiply-adds of a node. Nodes in its subgraphs count once."""
    inside = sum(multiply_adds(n) for sub in node.subgraphs for n in sub)
    count = MULTIPLY_ADDS.get(node.op)
    return inside + (0 if count is None else count(node))


def touched(node: Node) -> int:
    """The bytes that a node reads and writes, constants included. Nodes in its subgraphs count once."""
    inside = sum(touched(n) for sub in node.subgraphs for n in sub)
    if traits(node).has(Trait.ORDERED) or _is_within_group(node):
        return inside
    return inside + sum(map(_stored, dict.fromkeys((*node.inputs, *node.outputs))))


def _is_within_group(node: Node) -> bool:
    """True for a DequantizeLinear or QuantizeLinear with an operator on its float side: they compute in 8 bits together."""
    if node.op == "DequantizeLinear":
        return not node.out.is_output
    return node.op == "QuantizeLinear" and node.inputs[0] is not None and node.inputs[0].producer is not None


def _stored(value: Value | None) -> int:
    """The bytes of a tensor; for the float side of a DequantizeLinear or QuantizeLinear, the bytes of its quantized side."""
    if value is None or value.producer is None or value.is_output:
        return size(value)
    if value.producer.op == "DequantizeLinear":
        return size(value.producer.input(0))
    quantized = next((n for n in value.consumers if n.op == "QuantizeLinear"), None)
    return size(value if quantized is None else quantized.output(0))


def _is_quantized(node: Node) -> bool:
    """True for 8-bit arithmetic: the first input is an 8-bit tensor or the output of a DequantizeLinear."""
    first = node.input(0)
    if first is None:
        return False
    from_dq = first.producer is not None and first.producer.op == "DequantizeLinear"
    return from_dq or first.dtype in (DType.UINT8, DType.INT8)


def seconds(node: Node, speed: Speed) -> float:
    """The time of a node: that of its multiply-adds or that of its memory traffic, whichever is longer."""
    rate = speed.quantized_multiply_adds_per_second if _is_quantized(node) else speed.multiply_adds_per_second
    return max(multiply_adds(node) / rate, touched(node) / speed.bytes_per_second)


# ---------------------------------------------------------------------- partitions


class Cost(NamedTuple):
    """A partition on a device: bytes copied in and out, multiply-adds, seconds on the CPU and on the accelerator."""

    bytes_in: int
    bytes_out: int
    multiply_adds: int
    cpu_seconds: float
    accelerator_seconds: float
    copy_seconds: float

    @property
    def gain(self) -> float:
        """Seconds saved by the partition; negative if it costs more than it saves."""
        return self.cpu_seconds - self.accelerator_seconds - self.copy_seconds

    @property
    def is_worthwhile(self) -> bool:
        return self.gain > 0

    def to_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "gain_seconds": self.gain, "worthwhile": self.is_worthwhile}


def cost(partition: Partition, device: DeviceProfile) -> Cost:
    """The estimate for one partition. Constants are not counted as copies: they are transferred once, when the model is loaded."""
    bytes_in = sum(size(v) for v in partition.inputs if not v.is_constant)
    bytes_out = sum(size(v) for v in partition.outputs)
    products = sum(map(multiply_adds, partition.nodes))
    cpu, accelerator = (total_seconds(partition.nodes, speed) for speed in (device.cpu, device.accelerator))
    copying = device.copies.seconds_per_partition + (bytes_in + bytes_out) / device.copies.bytes_per_second
    return Cost(bytes_in, bytes_out, products, cpu, accelerator, copying)


def total_seconds(nodes: Iterable[Node], speed: Speed) -> float:
    return math.fsum(seconds(n, speed) for n in nodes)


class Estimate(NamedTuple):
    """Estimate for a model on a device: the cost of each partition, the multiply-adds of all nodes, and their time on the CPU."""

    device: DeviceProfile
    partitions: tuple[Cost, ...]
    multiply_adds: int
    cpu_seconds: float

    @property
    def seconds(self) -> float:
        """The time in seconds with all partitions on the accelerator."""
        return self.cpu_seconds - math.fsum(c.gain for c in self.partitions)

    @property
    def best_seconds(self) -> float:
        """The time in seconds if only the partitions that save time are on the accelerator."""
        return self.cpu_seconds - math.fsum(c.gain for c in self.partitions if c.is_worthwhile)

    @property
    def multiply_adds_taken(self) -> int:
        return sum(c.multiply_adds for c in self.partitions)

    @property
    def work_coverage(self) -> float:
        """Multiply-adds in partitions as a percentage of all; 0 for a model without multiply-adds."""
        return 100.0 * self.multiply_adds_taken / self.multiply_adds if self.multiply_adds else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "device": asdict(self.device),
            "multiply_adds": self.multiply_adds,
            "multiply_adds_taken": self.multiply_adds_taken,
            "cpu_seconds": self.cpu_seconds,
            "seconds": self.seconds,
            "best_seconds": self.best_seconds,
            "assumptions": list(ASSUMPTIONS),
        }


def estimate(partitioning: Partitioning, device: DeviceProfile | None = None) -> Estimate:
    """The cost of each partition of a model, and the time that it saves."""
    device = device or DeviceProfile()
    nodes = list(partitioning.verdicts)
    costs = tuple(cost(p, device) for p in partitioning.partitions)
    return Estimate(device, costs, sum(map(multiply_adds, nodes)), total_seconds(nodes, device.cpu))
