"""Checks an .ort file and describes its contents. It finds facts that a minimal build of onnxruntime would trust although they are
wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ortconv.errors import located
from ortconv.files import map_file
from ortconv.ir.kernels import later_attributes
from ortconv.ir.model import NODES_MADE
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import Schema, plain_domain, schema, schema_of_id, type_arguments
from ortconv.ir.tensor import Array
from ortconv.ortformat import runtime
from ortconv.ortformat.decode import Record
from ortconv.ortformat.derived import argument_counts
from ortconv.ortformat.functions import without_kernel
from ortconv.ortformat.reader import model_of
from ortconv.ortformat.releases import oldest_release
from ortconv.ortformat.verify import decode, edge_rows, node_label, operator_of
from ortconv.process import without_collections
from ortconv.public import public
from ortconv.wording import counted

NO_KERNEL = "onnxruntime has no kernel for it, and does not expand functions or insert Casts when it loads .ort files"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a loadable file that is wrong or risky. `node` is empty if it concerns the whole file."""

    node: str
    message: str

    def __str__(self) -> str:
        return f"{self.node}: {self.message}" if self.node else self.message


@dataclass
class Report:
    """Statistics of an .ort file, subgraphs included, and findings."""

    path: str
    bytes: int
    format_version: str
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: list[str]
    outputs: list[str]
    nodes: int = 0
    graphs: int = 0
    initializers: int = 0
    weight_bytes: int = 0
    saved_optimizations: int = 0
    operators: dict[str, int] = field(default_factory=dict)
    """Number of nodes for each operator, most frequent first."""
    oldest_onnxruntime: str = ""
    """The oldest release that loads the file."""
    oldest_reason: str = ""
    """The feature that older releases lack, such as a kernel for a node."""
    findings: list[Finding] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Report on {self.path}: {self}>"

    def __str__(self) -> str:
        return (
            f"format version {self.format_version}, {counted(self.nodes, 'node')} in {counted(self.graphs, 'graph')}, "
            f"{counted(self.initializers, 'constant')} of {counted(self.weight_bytes, 'byte')}, "
            f"{counted(len(self.findings), 'finding')}, "
            f"loads in onnxruntime {self.oldest_onnxruntime} and later{self.oldest_reason and f' ({self.oldest_reason})'}"
        )


@public
def check(path: str | Path) -> Report:
    """Verify an .ort file and report on it. Raises OrtconvError, with the file's name, if it cannot be loaded at all."""
    with located(path), without_collections():
        buffer = map_file(path)
        root = decode(buffer)
        model = model_of(root)
    message = root.model
    opsets = {plain_domain(o.domain): o.version for o in message.opset_import}
    report = Report(
        str(path), len(buffer), root.ort_version, message.ir_version, opsets, model.producer,
        list(message.graph.inputs or ()), list(message.graph.outputs or ()),
    )  # fmt: skip
    seen: dict[str, Schema | None] = {}
    for graph in _graphs(message.graph):
        _count(graph, report)
        report.findings += _graph_findings(graph, opsets, seen)
    report.operators = dict(sorted(report.operators.items(), key=lambda item: (-item[1], item[0])))
    report.findings += _file_findings(root, seen)
    _, report.oldest_onnxruntime, report.oldest_reason = oldest_release(model)
    report.findings += [Finding(node.label, NO_KERNEL) for node in without_kernel(model.graph)]
    return report


def _graphs(graph: Record) -> Iterator[Record]:
    yield graph
    for node in graph.nodes or ():
        for sub in _subgraphs(node):
            yield from _graphs(sub)


def _subgraphs(node: Record) -> list[Record]:
    return [a.g for a in node.attributes or () if a.g is not None]


def _count(graph: Record, report: Report) -> None:
    report.graphs += 1
    for tensor in (*(graph.initializers or ()), *(s.values for s in graph.sparse_initializers or ())):
        report.initializers += 1
        report.weight_bytes += len(tensor.raw_data or ()) + sum(map(len, tensor.string_data or ()))
    for node in graph.nodes or ():
        report.nodes += 1
        op = operator_of(node)
        report.operators[op] = report.operators.get(op, 0) + 1
    report.saved_optimizations += sum(1 for _ in runtime.records(graph))


# ---------------------------------------------------------------------- findings


def _graph_findings(graph: Record, opsets: dict[str, int], seen: dict[str, Schema | None]) -> Iterator[Finding]:
    for node in graph.nodes or ():
        domain = plain_domain(node.domain or "")
        found = schema(domain, node.op_type, opsets.get(domain, 0))
        seen[f"{domain}:{node.op_type}:{node.since_version}"] = found
        for message in (*_node_findings(node, domain, found, opsets), *_implicit_findings(node)):
            yield Finding(node_label(node), message)
    yield from _edge_findings(graph)
    for optimizer, record in runtime.records(graph):
        seen.update((op_id, schema_of_id(op_id)) for op_id in record.produced_op_ids or ())
        for message in _saved_findings(optimizer, record, opsets):
            yield Finding("", f"saved optimization '{record.action_id}' of '{optimizer}': {message}")


def _implicit_findings(node: Record) -> Iterator[str]:
    needed = sorted(set().union(*(_free_names(sub) for sub in _subgraphs(node))))
    stated = sorted(node.implicit_inputs)
    if needed != stated:
        yield f"its subgraphs read {needed}, but implicit_inputs lists {stated}"


def _saved_findings(optimizer: str, record: Record, opsets: dict[str, int]) -> Iterator[str]:
    produced, expected = record.produced_op_ids or (), NODES_MADE.get((optimizer, record.action_id))
    if expected is None:
        yield "onnxruntime knows no such action"
    elif len(produced) != expected:
        yield f"it names {len(produced)} operators of the {expected} that it makes, which onnxruntime refuses to replay"
    for op_id in produced:
        found, domain = schema_of_id(op_id), op_id.rsplit(":", 2)[0]
        if found is None:
            yield f"no operator '{op_id}' exists"
        elif domain not in opsets:
            yield f"no version is imported of the operator set '{domain}' of what it makes"


def _node_findings(node: Record, domain: str, found: Schema | None, opsets: dict[str, int]) -> Iterator[str]:
    if node.domain == "ai.onnx":
        yield "its domain is written 'ai.onnx', which onnxruntime does not treat as the empty domain"
    if domain not in opsets:
        yield f"no version is imported of its operator set '{domain}'"
        return
    if found is None:
        if domain in ("", MICROSOFT):
            yield f"no operator of this name exists in version {opsets[domain]} of the operator set"
        return
    if node.since_version != found.since:
        yield f"since_version is {node.since_version} instead of {found.since}"
    missing = sorted(found.defaults.keys() - later_attributes(found).keys() - {a.name for a in node.attributes or ()})
    if missing:
        yield f"attributes are left to their defaults, which a minimal build does not know: {', '.join(missing)}"
    expected = argument_counts(found, len(node.inputs))
    if tuple(node.input_arg_counts) != expected:
        yield f"input_arg_counts is {list(node.input_arg_counts)} instead of {list(expected)}"


def _free_names(graph: Record) -> set[str]:
    """Names of outer-scope values that a graph or its subgraphs read."""
    reads: set[str] = set()
    own = set(graph.inputs or ()) | {t.name for t in graph.initializers or ()}
    own |= {s.values.name for s in graph.sparse_initializers or ()}
    for node in graph.nodes or ():
        own.update(node.outputs)
        reads.update(node.inputs)
        for sub in _subgraphs(node):
            reads |= _free_names(sub)
    return reads - own - {""}


def _edge_findings(graph: Record) -> Iterator[Finding]:
    """Findings about edges: those that follow from the names of inputs and outputs must be those that the file lists."""
    nodes = graph.nodes or ()
    made = {name: (n.index, slot) for n in nodes for slot, name in enumerate(n.outputs) if name}
    implied = {
        (*made[name], n.index, slot)
        for n in nodes
        for slot, name in enumerate((*n.inputs, *n.implicit_inputs))
        if name in made
    }
    rows: Array = edge_rows(graph)[0]
    listed = set(map(tuple, rows[rows[:, 1] != np.iinfo(np.int32).max].tolist()))
    if implied - listed:
        yield Finding("", f"{len(implied - listed)} edges are missing, so nodes may run in the wrong order")
    if listed - implied:
        yield Finding("", f"{len(listed - implied)} edges join what is not connected")


def _file_findings(root: Record, seen: dict[str, Schema | None]) -> Iterator[Finding]:
    if int(root.ort_version) < 5:
        yield Finding("", f"format version {root.ort_version} is refused by minimal builds since 1.13")
        return
    entries = root.kernel_type_str_resolver.op_kernel_type_str_args or ()
    listed = {entry.op_id: _type_arguments(entry) for entry in entries}
    for op_id, found in sorted(seen.items()):
        if op_id not in listed:
            yield Finding("", f"the kernel type strings of '{op_id}' are missing")
        elif found is not None and not type_arguments(found).items() <= listed[op_id].items():
            yield Finding("", f"the kernel type strings of '{op_id}' are wrong")


def _type_arguments(entry: Record) -> dict[str, list[tuple[int, int]]]:
    """The operands of each type string of an operator, as pairs of kind and index."""
    return {e.kernel_type_str: [(a.arg_type, a.index) for a in e.args or ()] for e in entry.kernel_type_str_args or ()}
