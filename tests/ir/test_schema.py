"""Schemas of ONNX's operators, against onnx's own messages."""

from __future__ import annotations

import onnx

from ortconv.ir.schema import schema


def test_default_attributes() -> None:
    stated = 0
    for one in onnx.defs.get_all_schemas_with_history():
        found = None if one.deprecated else schema(one.domain, one.name, one.since_version)
        if found is not None:
            want = {name: _value(a.default_value) for name, a in one.attributes.items() if a.default_value.type}
            assert {name: list(v) if isinstance(v, tuple) else v for name, v in found.defaults.items()} == want, (
                one.name
            )
            stated += len(want)
    assert stated > 600


def _value(attribute: onnx.AttributeProto) -> object:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, list):
        return [v.decode() if isinstance(v, bytes) else v for v in value]
    return value.decode() if isinstance(value, bytes) else value
