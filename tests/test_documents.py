"""JSON documents read as classes: what was written is read, and any other type is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pytest

from ortconv.documents import Document, read_as, read_document
from ortconv.errors import FormatError


class Spec(TypedDict):
    name: str
    data: NotRequired[int | None]


@dataclass(frozen=True)
class Part:
    name: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Whole(Document):
    parts: list[Part]
    pair: tuple[str, int]
    names: tuple[str, ...]
    scale: float
    specs: list[Spec] = field(default_factory=list)
    part: Part | None = None
    more: Any = None


GOOD: dict[str, Any] = {"parts": [{"name": "a", "sizes": {"x": 1}}], "pair": ["b", 2], "names": ["c"], "scale": 1}


def test_what_was_written_is_read() -> None:
    specs: list[Spec] = [{"name": "d"}, {"name": "e", "data": None}]
    whole = Whole([Part("a", {"x": 1})], ("b", 2), (), 0.5, specs, Part("f", {}), {"any": [1, "two"]})
    assert read_as(Whole, json.loads(json.dumps(asdict(whole)))) == whole
    assert read_as(Whole, GOOD) == Whole([Part("a", {"x": 1})], ("b", 2), ("c",), 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": {}}, "'parts' of the document is {}, which has the wrong type"),
        ({"parts": [[]]}, r"'parts' of the document\[0\] is \[\]"),
        ({"parts": [{"name": "a"}]}, "has no 'sizes'"),
        ({"parts": [{"name": "a", "sizes": {"x": "1"}}]}, r"\['x'\] is '1'"),
        ({"parts": [{"name": "a", "sizes": {"x": True}}]}, r"\['x'\] is True"),
        ({"pair": ["b"]}, r"is \['b'\]"),
        ({"pair": ["b", 2, 3]}, r"is \['b', 2, 3\]"),
        ({"names": "c"}, "is 'c'"),
        ({"scale": 10**400}, "which has the wrong type"),
        ({"scale": None}, "is None"),
        ({"specs": [{"data": 1}]}, "has no 'name'"),
        ({"specs": [{"name": "d", "data": "1"}]}, "is '1'"),
        ({"part": 1}, "'part' of the document is 1"),
        ({"other": 1}, "has an unknown field 'other'"),
    ],
)
def test_other_types_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_as(Whole, GOOD | change)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "it states no version"),
        ("{}", "it states no version"),
        ('{"version": 2}', "its version is 2"),
        ('{"version": 1}', "has no 'names'"),
        ("[" * 100_000, "(recursion|Stack overflow)"),
        ('{"version": 1, "parts": 1' + "0" * 5000 + "}", "digits"),
    ],
)
def test_other_documents_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=f"no baseline of version 1: .*{reason}"):
        read_document(path, Whole, "baseline")
