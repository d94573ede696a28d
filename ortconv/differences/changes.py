"""The changes between two aligned graphs. A difference that follows from another change is not reported."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Literal

import numpy as np

from ortconv.differences.alignment import Alignment
from ortconv.differences.colors import Palette
from ortconv.ir.attributes import Attribute, content
from ortconv.ir.graph import Graph, Graphs, Node, Value
from ortconv.ir.model import Model, SavedFusion
from ortconv.ir.nesting import named_subgraphs, readers
from ortconv.ir.schema import default_attributes
from ortconv.ir.tensor import SparseTensor, Tensor, dense
from ortconv.ir.text import attribute_text, tensor_text
from ortconv.ir.types import Dim, TensorType, ValueType
from ortconv.wording import counted

Kind = Literal[
    "node added", "node removed", "operator", "attribute", "rewired", "provider", "constant", "type",
    "input added", "input removed", "input renamed", "output added", "output removed", "output renamed", "order",
    "opset", "metadata", "saved fusion",
]  # fmt: skip

ABSENT = "none"

PORT_CHANGES: Mapping[str, tuple[Kind, Kind, Kind]] = {
    "input": ("input removed", "input added", "input renamed"),
    "output": ("output removed", "output added", "output renamed"),
}

MOST_BEHIND = 1000
"""Limit on the unpaired producers that are searched for each consumer."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `before` and `after` are texts, empty for a missing side."""

    kind: Kind
    subject: str
    """The subject of the change: the label of a node, or the name of a value."""
    before: str
    after: str
    detail: str = ""
    """The detail: which attribute or input of a node, how far constants are apart, or the consumers of an added or removed node."""
    place: str = ""
    """The subgraph, such as If 'choose' then_branch; empty for the main graph."""


def of_models(a: Model, b: Model) -> Iterator[Change]:
    """Changes outside of the graphs: operator sets in use, and metadata. An .ort file does not store the graph's name."""
    used = {node.domain for model in (a, b) for node in model.graph.walk()}
    yield from _of_mapping("opset", _opsets(a, used), _opsets(b, used))
    yield from _of_mapping("metadata", _metadata(a), _metadata(b))


def _opsets(model: Model, used: Collection[str]) -> dict[str, str]:
    return {domain or "ai.onnx": str(version) for domain, version in model.graph.opsets.items() if domain in used}


def _metadata(model: Model) -> dict[str, str]:
    plain = {
        "IR version": str(model.ir_version),
        "producer": model.producer,
        "domain": model.domain,
        "model version": str(model.model_version or 0),
        "description": model.doc,
    }
    return {name: text for name, text in plain.items() if text} | {f"'{k}'": v for k, v in model.metadata.items()}


def _of_mapping(kind: Kind, a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted({*a, *b}):
        if a.get(name) != b.get(name):
            yield Change(kind, name, a.get(name, ABSENT), b.get(name, ABSENT))


def of_fusions(partners: Mapping[Node, Node], a: Iterable[SavedFusion], b: Iterable[SavedFusion]) -> Iterator[Change]:
    """Changes of the fusions that are saved for onnxruntime. `partners` are the pairs of nodes."""
    of_a = {(f.optimizer, f.action, tuple(n and partners.get(n, n) for n in f.nodes)): f for f in a}
    of_b = {(f.optimizer, f.action, f.nodes): f for f in b}
    gone, new = ([f for k, f in one.items() if k not in other] for one, other in ((of_a, of_b), (of_b, of_a)))
    yield from (Change("saved fusion", f.target.label, f"{f.optimizer} {f.action}", ABSENT) for f in gone)
    yield from (Change("saved fusion", f.target.label, ABSENT, f"{f.optimizer} {f.action}") for f in new)


def between(a: Model, b: Model) -> tuple[GraphChanges, list[Change]]:
    """The aligned graphs of two models, and all changes from one model to the other."""
    found = GraphChanges(Alignment(a.graph, b.graph, Palette()))
    return found, [*of_models(a, b), *found.changes, *of_fusions(found.pairs, a.saved, b.saved)]


class GraphChanges:
    """The changes between two aligned graphs, and the values of which only the name changed."""

    def __init__(self, alignment: Alignment, place: str = "") -> None:
        self.alignment = alignment
        self.place = place
        self.renamed: dict[str, str] = {}
        self.pairs = dict(alignment.pairs)
        """The nodes of a that b has as well, including those of subgraphs."""
        self._constants: set[tuple[Value, Value]] = set()
        self.changes = list(self._all())

    def _all(self) -> Iterator[Change]:
        yield from self._interface()
        gone, new = self.alignment.left()
        for node in gone:
            yield self._change("node removed", node.label, described(node), ABSENT, _neighbors(self.alignment.a, node))
        for node in new:
            yield self._change("node added", node.label, ABSENT, described(node), _neighbors(self.alignment.b, node))
        for ours, theirs in self.alignment.pairs.items():
            self._note_names(ours, theirs)
            found = [*self._of_pair(ours, theirs)]
            yield from found or self._inner_types(ours, theirs)
        yield from self._unused()

    def _change(self, kind: Kind, subject: str, before: str, after: str, detail: str = "") -> Change:
        return Change(kind, subject, before, after, detail, self.place)

    # ------------------------------------------------------------------ inputs and outputs

    def _interface(self) -> Iterator[Change]:
        a, b = self.alignment.a, self.alignment.b
        yield from self._ports("input", a.inputs, b.inputs, self.alignment.inputs)
        yield from self._ports("output", a.outputs, b.outputs, self.alignment.outputs)

    def _ports(
        self, what: str, ours: list[Value], theirs: list[Value], partners: Mapping[Value, Value]
    ) -> Iterator[Change]:
        """The changes of the inputs or outputs, and of their order."""
        removed, added, _ = PORT_CHANGES[what]
        for value in ours:
            if value in partners:
                yield from self._of_port(what, value, partners[value])
            else:
                yield self._change(removed, value.name, str(value.type), ABSENT)
        paired = set(partners.values())
        for value in theirs:
            if value not in paired:
                yield self._change(added, value.name, ABSENT, str(value.type))
        mapped, kept = [partners[v] for v in ours if v in partners], [v for v in theirs if v in paired]
        if mapped != kept:
            yield self._change("order", f"{what}s", ", ".join(v.name for v in mapped), ", ".join(v.name for v in kept))

    def _of_port(self, what: str, ours: Value, theirs: Value) -> Iterator[Change]:
        """The changes of an input or output. Names and types count in the main graph alone."""
        is_main = self.alignment.a.owner is None
        if is_main and ours.name != theirs.name:
            yield self._change(PORT_CHANGES[what][2], ours.name, ours.name, theirs.name)
        if is_main and ours.type != theirs.type:
            yield self._change("type", ours.name, str(ours.type), str(theirs.type), what)
        if what == "output":
            yield from self._of_reads(ours, theirs, f"output {ours.name}", "")
        elif (ours.const is None) != (theirs.const is None):
            yield self._change("constant", ours.name, tensor_text(ours.const), tensor_text(theirs.const), "default")
        elif ours.const is not None and theirs.const is not None and content(ours.const) != content(theirs.const):
            yield self._of_constants(ours, theirs)

    # ------------------------------------------------------------------ nodes

    def _of_pair(self, ours: Node, theirs: Node) -> Iterator[Change]:
        if (ours.domain, ours.op) != (theirs.domain, theirs.op):
            yield self._change("operator", ours.label, ours.operator, theirs.operator)
        if ours.ep != theirs.ep:
            yield self._change("provider", ours.label, ours.ep or "CPU", theirs.ep or "CPU")
        yield from self._attributes(ours, theirs)
        for slot in range(max(len(ours.inputs), len(theirs.inputs))):
            yield from self._of_reads(ours.input(slot), theirs.input(slot), ours.label, f"input {slot}")
        for slot in range(max(len(ours.outputs), len(theirs.outputs))):
            made, twin = ours.output(slot), theirs.output(slot)
            if (made is None) != (twin is None):
                yield self._change("rewired", ours.label, _name(made), _name(twin), f"output {slot}")
        yield from self._inside(ours, theirs)

    def _attributes(self, ours: Node, theirs: Node) -> Iterator[Change]:
        if not (ours.attrs or theirs.attrs):
            return
        a, b = ({**default_attributes(node), **node.attrs} for node in (ours, theirs))
        for name in sorted({*ours.attrs, *theirs.attrs}):
            before, after = a.get(name), b.get(name)
            if isinstance(before, (Graph, Graphs)) or isinstance(after, (Graph, Graphs)):
                continue
            if _content(before) != _content(after):
                yield self._change("attribute", ours.label, _shown(before), _shown(after), name)

    def _of_reads(self, ours: Value | None, theirs: Value | None, subject: str, detail: str) -> Iterator[Change]:
        """The change for a node that reads another value than before, unless an added or removed node is the reason."""
        if self.alignment.same(ours, theirs):
            return
        if ours is not None and theirs is not None and ours.constant is not None and theirs.constant is not None:
            if (ours, theirs) not in self._constants:
                self._constants.add((ours, theirs))
                yield self._of_constants(ours, theirs)
            return
        if not self._follows(ours, theirs):
            yield self._change("rewired", subject, _name(ours), _name(theirs), detail)

    def _follows(self, ours: Value | None, theirs: Value | None) -> bool:
        """Whether a changed input follows from added or removed nodes.

        It does if the removed and the added nodes begin at a common value, or if constants replace them.
        """
        gone = ours is not None and self.alignment.is_gone(ours)
        new = theirs is not None and self.alignment.is_new(theirs)
        if ours is None or theirs is None or gone == new:
            return gone or new
        if gone:
            beginnings = ((value, theirs) for value in _behind(ours, self.alignment.is_gone))
        else:
            beginnings = ((ours, value) for value in _behind(theirs, self.alignment.is_new))
        return (theirs if gone else ours).constant is not None or any(starmap(self.alignment.same, beginnings))

    def _of_constants(self, ours: Value, theirs: Value) -> Change:
        assert ours.const is not None
        assert theirs.const is not None
        texts = tensor_text(ours.const), tensor_text(theirs.const)
        return self._change("constant", ours.name, *texts, _distance(ours.const, theirs.const))

    def _inner_types(self, ours: Node, theirs: Node) -> Iterator[Change]:
        """Types that contradict each other, although the node and the types of its inputs are the same."""
        if not all(map(_agree, ours.inputs, theirs.inputs)):
            return
        for made, twin in zip(ours.outputs, theirs.outputs, strict=True):
            if made is not None and twin is not None and not made.is_output and not _agree(made, twin):
                yield self._change("type", made.name, str(made.type), str(twin.type))

    def _inside(self, ours: Node, theirs: Node) -> Iterator[Change]:
        a, b = dict(named_subgraphs(ours)), dict(named_subgraphs(theirs))
        for name in sorted({*a, *b}):
            if name not in a or name not in b:
                before, after = (ABSENT if name not in one else counted(len(one[name]), "node") for one in (a, b))
                yield self._change("attribute", ours.label, before, after, name)
                continue
            known = self.alignment.known_inside(a[name], b[name])
            inner = Alignment(a[name], b[name], self.alignment.palette, known)
            place = f"{self.place}, {ours.label} {name}" if self.place else f"{ours.label} {name}"
            found = GraphChanges(inner, place)
            self.pairs |= found.pairs
            self.renamed |= found.renamed
            yield from found.changes

    def _note_names(self, ours: Node, theirs: Node) -> None:
        for made, twin in zip(ours.outputs, theirs.outputs, strict=False):
            if made is not None and twin is not None and made.name != twin.name:
                self.renamed[made.name] = twin.name

    def _unused(self) -> Iterator[Change]:
        """Unused constants whose content the other graph lacks."""
        a, b = self._contents(self.alignment.a), self._contents(self.alignment.b)
        unused = {key: v for key, v in (a | b).items() if (key in a) != (key in b) and not v.is_used}
        for key, value in unused.items():
            text = tensor_text(value.const)
            before, after = (text, ABSENT) if key in a else (ABSENT, text)
            yield self._change("constant", value.name, before, after, "nothing reads it")

    def _contents(self, graph: Graph) -> dict[int, Value]:
        """One constant for each content, without default values of inputs."""
        color = self.alignment.palette.content
        return {color(v.const): v for v in graph.initializers.values() if v.const is not None and not v.is_input}


def _behind(value: Value, is_left: Callable[[Value], bool]) -> Iterator[Value]:
    """The values that the unpaired producers of a value read, found backward; of many, the nearest."""
    seen, queue = {value}, deque([value])
    while queue and len(seen) < MOST_BEHIND:
        producer = queue.popleft().producer
        for read in producer.inputs if producer is not None else ():
            if read is not None and read not in seen:
                seen.add(read)
                if is_left(read):
                    queue.append(read)
                else:
                    yield read


def described(node: Node) -> str:
    """A node on one line: outputs, operator, inputs and attributes."""
    made = ", ".join(map(_name, node.outputs))
    attrs = ", ".join(f"{k}={_shown(v)}" for k, v in sorted(node.attrs.items()))
    return f"{made} = {node.operator}{f'<{attrs}>' if attrs else ''}({', '.join(map(_name, node.inputs))})"


def _neighbors(graph: Graph, node: Node) -> str:
    found = Counter(n.label for v in node.present_outputs for n, _ in readers(v, graph))
    shown = list(found)[:3] + ([f"{len(found) - 3} more"] if len(found) > 3 else [])
    shown += [f"output {v.name}" for v in node.present_outputs if v.is_output]
    return f"read by {', '.join(shown)}" if shown else "read by nothing"


def _content(value: Attribute | None) -> Hashable:
    return None if value is None else content(value)


def _shown(value: Attribute | None) -> str:
    if value is None:
        return ABSENT
    return counted(len(value), "node") if isinstance(value, Graph) else attribute_text(value)


def _name(value: Value | None) -> str:
    return ABSENT if value is None else value.name


def _distance(ours: Tensor | SparseTensor, theirs: Tensor | SparseTensor) -> str:
    """How far two constants of the same type and shape are apart; empty for other pairs."""
    a, b = dense(ours), dense(theirs)
    if a.shape != b.shape or a.dtype != b.dtype:
        return ""
    with np.errstate(all="ignore"):
        differ = (a != b) & ~((a != a) & (b != b))
        count = f"{int(np.count_nonzero(differ))} of {a.size} elements differ"
        if a.dtype == object or not a.size:
            return count
        far = np.abs(np.asarray(a, np.complex128) - np.asarray(b, np.complex128))
        known = far[~np.isnan(far)]
        return f"{count}, by at most {float(known.max()):.3g}" if known.size else count


def _agree(ours: Value | None, theirs: Value | None) -> bool:
    """Whether type, rank and number of elements do not contradict each other."""
    if ours is None or theirs is None or ours.type is None or theirs.type is None:
        return True
    return _types_agree(ours.type, theirs.type)


def _types_agree(ours: ValueType, theirs: ValueType) -> bool:
    if not isinstance(ours, TensorType) or not isinstance(theirs, TensorType):
        return type(ours) is type(theirs)
    if ours.dtype is not theirs.dtype or ours.shape is None or theirs.shape is None:
        return ours.dtype is theirs.dtype
    return len(ours.shape) == len(theirs.shape) and all(map(_dims_agree, ours.shape, theirs.shape))


def _dims_agree(ours: Dim, theirs: Dim) -> bool:
    return ours == theirs or not (isinstance(ours, int) and isinstance(theirs, int))
