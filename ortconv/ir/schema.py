"""Operator schemas of ONNX and ONNX Runtime: formal parameters, attribute defaults and since_version."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ortconv.ir.graph import Attribute, Floats, Graph, Ints, Node, Strings, Value
from ortconv.ir.operators import Trait, traits
from ortconv.protobuf import fields

OPEN = 2**31 - 1
"""The last version of a kernel that serves all later versions, too."""

INPUT, OUTPUT = 0, 1

_FIELDS = {"FLOAT": 2, "INT": 3, "STRING": 4, "FLOATS": 7, "INTS": 8, "STRINGS": 9}
"""The fields of AttributeProto by the type of its value."""

_LISTS: dict[str, type[Ints | Floats | Strings]] = {"INTS": Ints, "FLOATS": Floats, "STRINGS": Strings}


class Formal(NamedTuple):
    """A formal parameter. `type` is a type parameter's name or a fixed type; `kind` is single, optional or variadic.

    If a variadic parameter is not `homogeneous`, its values may have different types.
    """

    name: str
    type: str
    kind: str
    homogeneous: bool = True


class Schema(NamedTuple):
    domain: str
    op: str
    since: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    type_parameters: frozenset[str]
    defaults: dict[str, Attribute]
    attributes: Mapping[str, str] = MappingProxyType({})
    """Attribute types by attribute name, in the notation of AttributeProto.AttributeType."""
    required: frozenset[str] = frozenset()
    """Attributes that every node must have."""
    allowed: Mapping[str, frozenset[str]] = MappingProxyType({})
    """Permitted types by type parameter, in ONNX's notation."""
    least: tuple[int, int] = (0, 0)
    """Minimum numbers of inputs and of outputs; absent ones in between count."""

    @property
    def id(self) -> str:
        """domain:operator:since_version, as an .ort file writes it."""
        return f"{self.domain}:{self.op}:{self.since}"

    def formal_input(self, slot: int) -> Formal | None:
        """The formal parameter of an actual input; a variadic last parameter serves all further inputs."""
        if slot < len(self.inputs):
            return self.inputs[slot]
        last = self.inputs[-1] if self.inputs else None
        return last if last is not None and last.kind == "variadic" else None


def plain_domain(name: str) -> str:
    """The name of a domain; empty for ONNX's own, which has two names."""
    return "" if name == "ai.onnx" else name


@cache
def schema(domain: str, op: str, opset: int) -> Schema | None:
    """The schema of an operator for a version of its operator set; None if there is none."""
    if domain in ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training"):
        found = _onnx_schema(domain, op, opset)
        if found is not None:
            return found
    versions = [since for since in _table_versions().get((domain, op), ()) if since <= max(opset, 1)]
    return _table_schema(domain, op, max(versions)) if versions else None


def operators(domain: str) -> list[str]:
    """The names of all operators of a domain that have a schema in any version, for suggestions in messages."""
    from ortconv.onnxlib import native

    known = {s.name for s in native.defs.get_all_schemas() if s.domain == domain}
    return sorted(known.union(op for d, op in _table_versions() if d == domain))


def schema_of_id(text: str) -> Schema | None:
    """The schema with the id domain:operator:since_version; None if there is none."""
    domain, op, since = text.rsplit(":", 2)
    found = schema(domain, op, int(since))
    return found if found is not None and found.id == text else None


def schema_of(node: Node) -> Schema | None:
    """The schema of a node for the operator sets of its graph; None if there is none."""
    return schema(node.domain, node.op, node.opset)


def unknown_operators(graph: Graph) -> list[str]:
    """The operators that ONNX Runtime does not have, in this graph and its subgraphs, as domain:operator."""
    return sorted({f"{n.domain}:{n.op}" for n in graph.walk() if schema_of(n) is None})


def since_version(node: Node) -> int:
    """The since_version of a node's schema; without a schema, the version of the operator set, at least 1."""
    found = schema_of(node)
    return found.since if found is not None else max(1, node.opset)


def attribute(node: Node, name: str) -> Any:
    """An attribute's value, or the schema's default; None if there is neither."""
    if name in node.attrs:
        return node.attrs[name]
    found = schema_of(node)
    return found.defaults.get(name) if found is not None else None


def type_arguments(schema: Schema) -> dict[str, list[tuple[int, int]]]:
    """The parameters that determine each type string of a kernel, as (INPUT or OUTPUT, formal index). Keys are in byte order.

    The type string of a parameter with a fixed type is the parameter's name.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for side, formals in ((INPUT, schema.inputs), (OUTPUT, schema.outputs)):
        for index, formal in enumerate(formals):
            key = formal.type if formal.type in schema.type_parameters else formal.name
            found.setdefault(key, []).append((side, index))
    return dict(sorted(found.items(), key=lambda item: item[0].encode()))


def serves(since: int, first: int, last: int) -> bool:
    """True if a kernel for versions `first` to `last` serves an operator of version `since`; with an open end, only `first`."""
    return since == first or first < since <= last != OPEN


def is_deterministic(node: Node) -> bool:
    """False if the node, or a node in its subgraphs, draws random numbers."""
    return not draws(node) and all(is_deterministic(inner) for sub in node.subgraphs for inner in sub)


def draws(node: Node) -> bool:
    """True if the node itself draws random numbers. A Dropout does only if its input training_mode is present and may be true."""
    known = traits(node)
    if known.random_if is not None:
        mode = node.input(known.random_if)
        return mode is not None and (mode.constant is None or bool(mode.constant.numpy().any()))
    return known.has(Trait.RANDOM)


def trains(node: Node) -> bool:
    """True if a node computes as in training: a BatchNormalization with the statistics of its input, or a Dropout that drops."""
    if node.is_op("BatchNormalization"):
        return bool(node.attr("training_mode", 0)) or any(node.outputs[1:])
    return node.is_op("Dropout") and draws(node)


def overwritten_inputs(node: Node) -> list[Value]:
    """The inputs in whose memory onnxruntime writes outputs: the running statistics of a BatchNormalization in training mode.

    If they are constants, the next run of the session reads what the last one wrote.
    """
    pairs = ((3, 1), (4, 2)) if node.is_op("BatchNormalization") else ()
    values = (node.input(slot) for slot, made in pairs if node.output(made) is not None)
    return [value for value in values if value is not None]


def default_attributes(node: Node) -> dict[str, Attribute]:
    """The schema's defaults for the attributes that a node omits."""
    found = schema_of(node)
    return {} if found is None else {k: v for k, v in found.defaults.items() if k not in node.attrs}


@cache
def _onnx_schema(domain: str, op: str, opset: int) -> Schema | None:
    from ortconv.onnxlib import get_schema

    found = get_schema(op, max(opset, 1), domain)
    if found is None or found.deprecated:
        return None
    return Schema(
        domain,
        op,
        found.since_version,
        tuple(map(_formal, found.inputs)),
        tuple(map(_formal, found.outputs)),
        frozenset(t.type_param_str for t in found.type_constraints),
        _defaults(found.attributes),
        attributes={name: declared.type.name for name, declared in found.attributes.items()},
        required=frozenset(name for name, declared in found.attributes.items() if declared.required),
        allowed={t.type_param_str: frozenset(t.allowed_type_strs) for t in found.type_constraints},
        least=(found.min_input, found.min_output),
    )


def _defaults(attributes: Mapping[str, Any]) -> dict[str, Attribute]:
    stated = ((name, declared.type.name, declared._default_value) for name, declared in attributes.items())
    return {name: _default(kind, encoded) for name, kind, encoded in stated if encoded}


def _formal(parameter: Any) -> Formal:
    return Formal(parameter.name, parameter.type_str, parameter.option.name.lower(), parameter.is_homogeneous)


def _default(kind: str, encoded: bytes) -> Attribute:
    """The value in an AttributeProto without tensors and graphs.

    onnx's messages could read it, but importing them takes longer than opening a small .ort file.
    """
    found = fields(memoryview(encoded), "a default of an attribute")
    values = [_element(value, kind) for number, value in found if number == _FIELDS[kind]]
    return _attribute(values if kind.endswith("S") else values[0], kind)


def _element(value: int | memoryview, kind: str) -> Any:
    if isinstance(value, int):
        return value - (value >> 63 << 64)
    return struct.unpack("<f", value)[0] if kind.startswith("FLOAT") else bytes(value).decode()


def _attribute(value: Any, kind: str) -> Attribute:
    made: Attribute = _LISTS[kind](value) if kind in _LISTS else value
    return made


@cache
def rows(name: str) -> dict[str, str]:
    """The rows of a table of this package by their keys, each as JSON. A model needs few of them."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return {key: row for key, _, row in (line.partition(" ") for line in lines)}


@cache
def _table_versions() -> dict[tuple[str, str], tuple[int, ...]]:
    table: dict[tuple[str, str], tuple[int, ...]] = {}
    for key in rows("operators.txt"):
        domain, op, since = key.rsplit(":", 2)
        table[domain, op] = (*table.get((domain, op), ()), int(since))
    return table


@cache
def _table_schema(domain: str, op: str, since: int) -> Schema:
    row = json.loads(rows("operators.txt")[f"{domain}:{op}:{since}"])
    return Schema(
        domain,
        op,
        since,
        tuple(Formal(*p) for p in row["inputs"]),
        tuple(Formal(*p) for p in row["outputs"]),
        frozenset(row["types"]),
        {name: _attribute(value, kind) for name, (kind, value) in row["defaults"].items()},
        attributes=row["attributes"],
        required=frozenset(row["required"]),
        allowed={name: frozenset(types) for name, types in row["types"].items()},
        least=tuple(row["least"]),
    )
