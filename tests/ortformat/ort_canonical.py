"""What an .ort file says, without what is free: order, sharing, node numbers, absent against empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ortconv.ortformat.layout import CPU
from ortconv.ortformat.verify import decode, edge_rows

Json = Any


def canonical(buffer: Any, *, imports: bool = False) -> Json:
    """A file as plain nested dictionaries, comparable with ==. Opset imports only on demand."""
    root = decode(buffer)
    model = root.model
    found = {
        "version": root.ort_version,
        "ir_version": model.ir_version,
        "producer": (model.producer_name or "", model.producer_version or ""),
        "domain": model.domain or "",
        "model_version": model.model_version,
        "doc": (model.doc_string or "", model.graph_doc_string or ""),
        "metadata": {pair.key: pair.value for pair in model.metadata_props or ()},
        "graph": graph(model.graph),
        "kernel_types": {
            entry.op_id: {
                e.kernel_type_str: [(a.arg_type, a.index) for a in e.args or ()]
                for e in entry.kernel_type_str_args or ()
            }
            for entry in root.kernel_type_str_resolver.op_kernel_type_str_args or ()
        },
    }
    if imports:
        found["imports"] = opset_imports(model)
    return found


def opset_imports(model: Any) -> dict[str, int]:
    """Versions by domain. Once onnxruntime has loaded tests/ortformat/custom_ops.c, all its files import that domain, too."""
    imports = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    imports.pop("test.ops", None)
    return imports


def graph(record: Any) -> Json:
    nodes = {n.index: n for n in record.nodes or ()}
    return {
        "inputs": list(record.inputs or ()),
        "outputs": list(record.outputs or ()),
        "initializers": {t.name: tensor(t) for t in record.initializers or ()},
        "sparse": {
            s.values.name: (tensor(s.values), tensor(s.indices), list(s.dims)) for s in record.sparse_initializers or ()
        },
        "values": {v.name: None if v.type is None else value_type(v.type) for v in record.node_args or ()},
        "nodes": {key(n): node(n) for n in nodes.values()},
        "edges": sorted(edge(row, nodes) for row in edge_rows(record)[0].tolist()),
        "edge tables": sorted(key(nodes[e.node_index]) for e in record.node_edges or ()),
    }


def key(record: Any) -> str:
    return f"{record.op_type} -> {', '.join(record.outputs)}"


def node(record: Any) -> Json:
    return {
        "name": record.name or "",
        "doc": record.doc_string or "",
        "domain": record.domain or "",
        "since": record.since_version,
        "type": record.type,
        "provider": record.execution_provider_type or CPU,
        "inputs": list(record.inputs),
        "counts": list(record.input_arg_counts),
        "implicit": sorted(record.implicit_inputs),
        "attributes": {a.name: attribute(a) for a in record.attributes or ()},
    }


def edge(row: list[int], nodes: Any) -> tuple[str, int, str, str]:
    """Producer, its slot, consumer, and the input by number or, where it is implicit, by name."""
    producer, slot, consumer, to = nodes[row[0]], row[1], nodes[row[2]], row[3]
    explicit = len(consumer.inputs)
    return key(producer), slot, key(consumer), str(to) if to < explicit else consumer.implicit_inputs[to - explicit]


def attribute(record: Any) -> Json:
    payload: dict[int, Callable[[], Any]] = {
        1: lambda: record.f,
        2: lambda: record.i,
        3: lambda: record.s,
        4: lambda: tensor(record.t),
        5: lambda: graph(record.g),
        6: lambda: list(record.floats),
        7: lambda: list(record.ints),
        8: lambda: list(record.strings),
        9: lambda: [tensor(t) for t in record.tensors],
    }
    return record.type, payload[record.type]()


def tensor(record: Any) -> Json:
    data = [bytes(s) for s in record.string_data] if record.data_type == 8 else bytes(record.raw_data)
    return record.data_type, list(record.dims), data


def value_type(record: Any) -> Json:
    content = record.value
    if record.value_type == 2:
        return {"sequence": value_type(content.elem_type)}
    if record.value_type == 3:
        return {"map": (content.key_type, value_type(content.value_type))}
    shape = content.shape
    return content.elem_type, None if shape is None else [dimension(d) for d in shape.dim or ()]


def dimension(record: Any) -> Json:
    value = record.value
    if value is None or value.dim_type == 0:
        return None
    return value.dim_value if value.dim_type == 1 else value.dim_param


def without_shapes(found: Json) -> Json:
    """The same with only the element types of tensors; for comparing what shape inference left open differently."""
    if isinstance(found, dict):
        return {
            k: {n: t[0] if isinstance(t, tuple) else t for n, t in v.items()} if k == "values" else without_shapes(v)
            for k, v in found.items()
        }
    if isinstance(found, (list, tuple)):
        return type(found)(without_shapes(v) for v in found)
    return found


def differences(ours: Json, theirs: Json, where: str = "") -> list[str]:
    """Every place where the two differ, for a message that helps."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = [f"{where}: only ours has {k!r}" for k in ours.keys() - theirs.keys()]
        found += [f"{where}: only theirs has {k!r}" for k in theirs.keys() - ours.keys()]
        for k in ours.keys() & theirs.keys():
            found += differences(ours[k], theirs[k], f"{where}/{k}")
        return sorted(found)
    if isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        return [d for i, (a, b) in enumerate(zip(ours, theirs)) for d in differences(a, b, f"{where}({i})")]
    return [] if ours == theirs else [f"{where}: {str(ours)[:300]} | {str(theirs)[:300]}"]
