"""The details that a page shows for each node: attributes, tensors, cost, and why an accelerator refuses it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from ortconv.ir.graph import Attribute, Graph, Graphs, Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.schema import schema_of, since_version
from ortconv.ir.tensor import Tensor
from ortconv.ir.text import SHOWN_ELEMENTS, attribute_text, tensor_text
from ortconv.partition import Partitioning
from ortconv.partition.cost import multiply_adds, seconds
from ortconv.partition.profile import DeviceProfile
from ortconv.report.page import clean
from ortconv.wording import counted

LONGEST = 160
"""Length limit of the text of an attribute or a constant, in characters."""
MOST_ELEMENTS = 1 << 22
"""Larger constants have no range: reading them would take longer than the rest of the page."""

FAMILIES = {
    "product": "convolution, product",
    "reduction": "pooling, normalization, reduction",
    "elementwise": "element by element",
    "movement": "moves elements",
}
"""Families of operators, with their legend: the colors of pictures that are not divided between CPU and accelerator."""

_PRODUCT = re.compile("Conv|MatMul|Gemm|Attention|LSTM|GRU|RNN")
_REDUCTION = re.compile("Pool|Norm|LRN|Softmax")


class GraphDetails:
    """The nodes of a graph as JSON values, numbered. Values and reasons that several nodes share are stored once.

    `operators` has [version, names of inputs, names of outputs, family] by operator; the last name is that of all further values.
    A node is [operator, name, attributes, inputs, outputs, multiply-adds, microseconds on the CPU, on the accelerator,
    partition, reasons]; inputs and outputs are numbers of values, -1 for one that is left out. A value is [name, type], and of
    a constant its first elements and its range, too. A reason is [rule, message, advice], its rule and its advice numbers of
    `words`.
    """

    def __init__(self, partitioning: Partitioning | None, device: DeviceProfile | None = None) -> None:
        self.partitioning, self.device = partitioning, device or DeviceProfile()
        self.node_ids: dict[Node, int] = {}
        self.value_ids: dict[Value, int] = {}
        self.reason_ids: dict[tuple[int, str, int], int] = {}
        self.word_ids: dict[str, int] = {}
        self.operators: dict[str, list[Any]] = {}
        self.nodes: list[list[Any]] = []
        self.values: list[list[Any]] = []

    def add(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.node_ids[node] = len(self.nodes)
            self.nodes.append(self._node(node))

    def to_dict(self) -> dict[str, Any]:
        words = list(map(clean, self.word_ids))
        tables = {"operators": self.operators, "nodes": self.nodes, "values": self.values}
        return {**tables, "reasons": list(self.reason_ids), "words": words}

    def value(self, value: Value | None) -> int:
        """The number of a value."""
        if value is None:
            return -1
        if value not in self.value_ids:
            self.value_ids[value] = len(self.values)
            constant = value.constant
            held = [] if constant is None else [*_elements(constant)]
            self.values.append([clean(value.name), clean(str(value.type or "unknown")), *held])
        return self.value_ids[value]

    def reason(self, rule: str, message: str, advice: str) -> int:
        """The number of a reason."""
        found = (self._word(rule), clean(message), self._word(advice))
        return self.reason_ids.setdefault(found, len(self.reason_ids))

    def _word(self, text: str) -> int:
        return self.word_ids.setdefault(text, len(self.word_ids))

    def _operator(self, node: Node) -> str:
        """The name of the operator of a node, whose schema is noted."""
        name = clean(node.operator)
        if name not in self.operators:
            schema = schema_of(node)
            names = ([], []) if schema is None else ([f.name for f in side] for side in (schema.inputs, schema.outputs))
            version = f"{node.domain or 'ai.onnx'} {since_version(node)}"
            self.operators[name] = [clean(version), *names, family(node)]
        return name

    def _node(self, node: Node) -> list[Any]:
        verdict = None if self.partitioning is None else self.partitioning.verdicts.get(node)
        return [
            self._operator(node),
            clean(node.name),
            [[clean(k), _attribute(v)] for k, v in sorted(node.attrs.items())],
            [self.value(v) for v in node.inputs],
            [self.value(v) for v in node.outputs],
            multiply_adds(node),
            *(round(seconds(node, speed) * 1e6, 3) for speed in (self.device.cpu, self.device.accelerator)),
            None if verdict is None else verdict.partition,
            [] if verdict is None else [self.reason(*o) for o in verdict.objections],
        ]


def family(node: Node) -> str:
    """The family of an operator; empty for one that belongs to none."""
    facts = traits(node)
    if facts.has(Trait.SUMS) or _PRODUCT.search(node.op):
        return "product"
    if facts.has(Trait.REDUCES) or _REDUCTION.search(node.op):
        return "reduction"
    if facts.has(Trait.MOVES, Trait.JOINS):
        return "movement"
    return "elementwise" if facts.has(Trait.ELEMENTWISE, Trait.BROADCASTS) else ""


def _attribute(value: Attribute) -> str:
    if isinstance(value, Graph):
        return f"graph of {counted(len(list(value.walk())), 'node')}"
    if isinstance(value, Graphs):
        return ", ".join(map(_attribute, value))
    return _clipped(attribute_text(value))


def _elements(constant: Tensor) -> Iterator[str]:
    """The first elements of a constant and, if there are more, the smallest and the largest one."""
    yield _clipped("{" + tensor_text(constant).partition("{")[2])
    if SHOWN_ELEMENTS < constant.size <= MOST_ELEMENTS and constant.dtype.numpy.kind in "iuf":
        elements = constant.numpy()
        yield f"{constant.size} elements from {float(elements.min()):.4g} to {float(elements.max()):.4g}"


def _clipped(text: str) -> str:
    text = clean(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
