"""Write ortconv/ir/operators.txt: the operator schemas of onnxruntime that the onnx package lacks.

    python schemas/operators.py

A line for each operator that onnx.defs has not (com.microsoft and the like), or only as deprecated: domain:operator:since_version,
and as JSON its formal inputs and outputs, their smallest numbers, the types of type parameters, types of attributes, which are
required, and defaults.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
from onnx import defs, helper

from ortconv.backends.onnxruntime_cpu import runtime

ort = runtime().capi._pybind_state

TARGET = Path(__file__).parent.parent / "ortconv" / "ir" / "operators.txt"
OPTIONS = {"Single": "single", "Optional": "optional", "Variadic": "variadic"}


def formals(parameters: Any) -> list[list[Any]]:
    return [[p.name, p.typeStr, OPTIONS[p.option.name], *([] if p.isHomogeneous else [False])] for p in parameters]


def default(attribute: Any) -> Any:
    value = helper.get_attribute_value(onnx.AttributeProto.FromString(attribute._default_value))
    kind = attribute.type.name
    if kind == "STRING":
        value = value.decode()
    elif kind == "STRINGS":
        value = [v.decode() for v in value]
    elif kind in ("INTS", "FLOATS"):
        value = list(value)
    return [kind, value]


def schemas() -> dict[str, Any]:
    known = {(s.domain, s.name, s.since_version) for s in defs.get_all_schemas_with_history() if not s.deprecated}
    table = {}
    for s in ort.get_all_operator_schema():
        if (s.domain, s.name, s.since_version) in known or s.deprecated or s.domain == "com.ms.internal.nhwc":
            continue
        table[f"{s.domain}:{s.name}:{s.since_version}"] = {
            "inputs": formals(s.inputs),
            "outputs": formals(s.outputs),
            "least": [s.min_input, s.min_output],
            "types": {t.type_param_str: list(t.allowed_type_strs) for t in s.type_constraints},
            "attributes": {n: a.type.name for n, a in sorted(s.attributes.items())},
            "required": sorted(n for n, a in s.attributes.items() if a.required),
            "defaults": {n: default(a) for n, a in sorted(s.attributes.items()) if a._default_value},
        }
    return dict(sorted(table.items()))


if __name__ == "__main__":
    table = schemas()
    TARGET.write_text("".join(f"{key} {json.dumps(row, separators=(',', ':'))}\n" for key, row in table.items()))
    print(f"{TARGET.name}: {len(table)} schemas")
