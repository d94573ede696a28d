"""The layout as data equals the layout as a schema, and equals what LiteRT's own bindings know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ortconv.tflite.layout import OPERATORS, OPTIONS, TABLES, ElementType
from tests.batches import batched

SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "tflite.fbs"
SCALARS = {"bool": "bool", "uint8": "u8", "int8": "i8", "int32": "i32", "uint32": "u32", "int64": "i64", "float": "f32"}


def test_schema_file_states_the_same() -> None:
    text = SCHEMA.read_text()
    tables = dict(re.findall(r"^table (\w+) \{\n(.*?)^\}", text, re.M | re.S))
    assert list(tables) == list(TABLES)
    for name, body in tables.items():
        stated = []
        for field, kind, default, unused in re.findall(
            r"^  (\w+):([\[\]\w]+)(?: = (-?\d+))?( \(deprecated\))?;", body, re.M
        ):
            element = kind.strip("[]")
            mine = "union" if kind == "BuiltinOptions" else SCALARS.get(element, element)
            stated.append(None if unused else (field, f"[{mine}]" if "[" in kind else mine, int(default or 0)))
        assert stated == [None if f is None else (f.name, f.kind, int(f.default or 0)) for f in TABLES[name]], name


def test_schema_file_has_the_tags() -> None:
    union = re.search(r"^union BuiltinOptions \{ (.*) \}", SCHEMA.read_text(), re.M)
    assert union is not None
    pairs = (part.split(" = ") for part in union.group(1).split(", "))
    assert {name: int(tag) for name, tag in pairs} == OPTIONS


def test_every_table_of_options_has_a_tag() -> None:
    assert (
        {kind for _, kind in OPERATORS.values() if kind} <= set(OPTIONS) == {n for n in TABLES if n.endswith("Options")}
    )


def test_numbers_are_those_of_litert() -> None:
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="ai-edge-litert is not installed")
    assert {name: getattr(schema.BuiltinOperator, name) for name in OPERATORS} == {
        n: c for n, (c, _) in OPERATORS.items()
    }
    assert {name: getattr(schema.BuiltinOptions, name) for name in OPTIONS} == OPTIONS
    assert {one.name: getattr(schema.TensorType, one.name) for one in ElementType} == {
        t.name: t.value for t in ElementType
    }


@batched
@pytest.mark.parametrize("name", list(TABLES))
def test_slots_are_those_of_litert(name: str) -> None:
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="ai-edge-litert is not installed")
    import inspect

    source = inspect.getsource(getattr(schema, name))
    slots = {m[1]: (int(m[2]) - 4) // 2 for m in re.finditer(r"def (\w+)\(self(?:, j)?\):\n.*?Offset\((\d+)\)", source)}
    for slot, field in enumerate(TABLES[name]):
        if field is not None:
            assert slots["".join(part.capitalize() for part in field.name.split("_"))] == slot, field.name
