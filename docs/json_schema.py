"""JSON Schemas of the documents that verbs print with --json, from the dataclasses that they are made of."""

from __future__ import annotations

import json
import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any

PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def document_schema(name: str, root: type, version: int) -> str:
    """The schema of a verb's document as text: the fields of its result beside the document's version."""
    definitions: dict[str, Any] = {}
    described = _object(root, definitions)
    described["properties"] = {"version": {"const": version}, **described["properties"]}
    described["required"] = ["version", *described["required"]]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"ortconv {name} --json, version {version}",
    }
    return json.dumps({**head, **described, "$defs": dict(sorted(definitions.items()))}, indent=1) + "\n"


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    properties = {field.name: _schema(hints[field.name], definitions) for field in fields(kind)}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if is_dataclass(hint) and isinstance(hint, type):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(one, definitions) for one in arguments]}
    if origin in (list, tuple):
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    raise TypeError(f"no schema for {hint}")
