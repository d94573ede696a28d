"""Is a document what a JSON Schema says? The part of JSON Schema that docs/schemas uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

TYPES: dict[str, Any] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "object": (dict,),
}  # fmt: skip
KNOWN = {
    "$schema", "title", "$defs", "$ref", "type", "const", "enum", "anyOf", "items", "properties", "required",
    "additionalProperties",
}  # fmt: skip


def faults(document: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, path: str = "$") -> Iterator[str]:
    """What is wrong with a document, place by place."""
    root = schema if root is None else root
    assert schema.keys() <= KNOWN, schema.keys() - KNOWN
    if "$ref" in schema:
        yield from faults(document, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if "const" in schema and document != schema["const"]:
        yield f"{path}: {document!r} is not {schema['const']!r}"
    if "enum" in schema and document not in schema["enum"]:
        yield f"{path}: {document!r} is not one of {schema['enum']}"
    if "anyOf" in schema and all(any(True for _ in faults(document, one, root, path)) for one in schema["anyOf"]):
        yield f"{path}: {document!r} fits none of {schema['anyOf']}"
    if "type" in schema:
        if not isinstance(document, TYPES[schema["type"]]) or (
            isinstance(document, bool) and schema["type"] != "boolean"
        ):
            yield f"{path}: {document!r} is no {schema['type']}"
        elif schema["type"] == "array":
            for i, one in enumerate(document):
                yield from faults(one, schema["items"], root, f"{path}[{i}]")
        elif schema["type"] == "object":
            yield from _of_object(document, schema, root, path)


def _of_object(document: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in document:
            yield f"{path}: {name} is missing"
    for name, value in document.items():
        if name in properties or isinstance(others, dict):
            yield from faults(value, properties.get(name, others), root, f"{path}.{name}")
        elif others is False:
            yield f"{path}: {name} is unknown"
