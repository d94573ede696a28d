"""The layout as data equals the layout as a schema, and equals what onnxruntime's own bindings know."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from ortconv.ortformat.layout import ENUMS, TABLES, UNION
from tests.batches import batched

SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "ort.fbs"
SCALARS = {"bool": "bool", "uint8": "u8", "int8": "i8", "int32": "i32", "uint32": "u32", "int64": "i64", "float": "f32"}


def test_schema_file_says_the_same() -> None:
    text = SCHEMA.read_text()
    tables = dict(re.findall(r"^table (\w+) \{\n(.*?)^\}", text, re.M | re.S))
    assert list(tables) == list(TABLES)
    for name, body in tables.items():
        said = []
        for field, kind, default, extra, comment in re.findall(
            r"^  (\w+):([\[\]\w]+)(?: = (-?\d+))?(?: \((\w+)\))?;(.*)$", body, re.M
        ):
            if extra == "deprecated":
                said.append(None)
                continue
            if kind == "TypeInfoValue":
                said.append(("value_type", "TypeInfoValue", False, 0))
            element = kind.strip("[]")
            mine = (
                "bytes"
                if "any bytes" in comment
                else "union"
                if kind == "TypeInfoValue"
                else SCALARS.get(element, element)
            )
            scalar = mine in SCALARS.values() or mine in ENUMS
            vector = kind.startswith("[")
            said.append(
                (
                    field,
                    f"[{mine}]" if vector else mine,
                    extra == "required",
                    int(default or 0) if scalar and not vector else None,
                )
            )
        assert said == [None if f is None else tuple(f) for f in TABLES[name]], name


def test_schema_file_has_the_enumerations() -> None:
    text = SCHEMA.read_text()
    for name, kind, values in re.findall(r"^enum (\w+) : (\w+) \{ (.*) \}", text, re.M):
        assert ENUMS[name] == (SCALARS[kind], len(values.split(", ")))
    union = re.search(r"^union TypeInfoValue \{ (.*) \}", text, re.M)
    assert union is not None
    assert ("", *union.group(1).split(", ")) == UNION


@batched
@pytest.mark.parametrize("table", TABLES)
def test_bindings_have_the_same_slots(table: str) -> None:
    pytest.importorskip("onnxruntime.tools.ort_format_model")
    module = importlib.import_module(f"ort_flatbuffers_py.fbs.{table}")
    source = Path(module.__file__ or "").read_text()
    for slot, field in enumerate(TABLES[table]):
        if field is not None:
            camel = "".join(part.capitalize() for part in field.name.split("_"))
            getter = re.search(rf"def {camel}\(self.*?\.Offset\((\d+)\)", source, re.S)
            assert getter is not None, field.name
            assert int(getter.group(1)) == 4 + 2 * slot
