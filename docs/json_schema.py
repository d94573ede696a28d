"""JSON Schemas of the documents that verbs print with --json, from the dataclasses that they are made of."""

from __future__ import annotations

import json
import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any

PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}

TITLES = {"batch": "the last line of a verb with a directory and --json", "error": "a verb with --json that fails"}
"""Documents that are of no single verb."""


def document_schema(name: str, root: type) -> str:
    """The schema of a verb's document as text: the fields of its result beside the document's version."""
    definitions: dict[str, Any] = {}
    version = getattr(root, "VERSION", 1)
    described = _object(root, definitions)
    described["properties"] = {"version": {"const": version}, **described["properties"]}
    described["required"] = ["version", *described["required"]]
    title = TITLES.get(name, f"ortconv {name.replace('_', ' ')} --json")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"{title}, version {version}"}
    return json.dumps({**head, **described, "$defs": dict(sorted(definitions.items()))}, indent=1) + "\n"


def _object(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else list(hints)
    required = [name for name in names if name in getattr(kind, "__required_keys__", names)]
    properties = {name: _schema(hints[name], definitions) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _is_object(hint: Any) -> bool:
    """Whether a type is a dataclass, a TypedDict or a NamedTuple: an object with these fields."""
    return isinstance(hint, type) and (is_dataclass(hint) or typing.is_typeddict(hint) or hasattr(hint, "_fields"))


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if hint is Any:
        return {}
    if _is_object(hint):
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
