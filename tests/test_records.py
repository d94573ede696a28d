"""Records do what dataclasses do, and cost less where they are made."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Callable
from dataclasses import field
from types import ModuleType
from typing import Any

import pytest

from ortconv import records

SOURCE = """
@decorate(**settings)
class Point:
    x: int
    y: int = 2
    tags: list = field(default_factory=list)
    note: str = field(default="", repr=False, compare=False)
    size: float = field(init=False, default=0.5)

    def __post_init__(self):
        object.__setattr__(self, "size", self.x / 2)

@decorate(**settings)
class Place(Point):
    name: str = "here"
    color: str = field(default="red", kw_only=True)

@decorate(**settings)
class One:
    only: tuple

    def __repr__(self):
        return "one"
"""
SETTINGS = [
    {"frozen": frozen, "slots": slots, "eq": eq}
    for frozen in (False, True) for slots in (False, True) for eq in (False, True)
]  # fmt: skip


def made(decorate: Callable[..., Any], settings: dict[str, bool], name: str) -> ModuleType:
    """The classes of SOURCE in a module of their own, where pickle finds them."""
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(decorate=decorate, settings=settings, field=field)
    exec(SOURCE, module.__dict__)
    return module


def outcome(make: Callable[[], Any]) -> Any:
    """What comes of a call, or its error."""
    try:
        return make()
    except (AttributeError, TypeError) as error:
        return type(error), str(error)


ATTEMPTS: dict[str, Callable[[Any], Any]] = {
    "repr": lambda m: repr([m.Point(1), m.Place(1, 2, ["a"], "n", "there", color="blue"), m.One((1,))]),
    "missing": lambda m: m.Point(),
    "too_many": lambda m: m.Place(1, 2, [], "", "there", "blue"),
    "unknown": lambda m: m.Point(1, z=3),
    "no_sharing": lambda m: m.Point(1).tags is m.Point(1).tags,
    "equal": lambda m: [m.Point(1) == m.Point(1, note="n"), m.Point(1) == m.Point(2), m.Point(1) == m.Place(1)],
    "other": lambda m: [m.Point(1) == 1, m.One(()) == m.One(()), m.One(()) != m.One((1,))],
    "hash": lambda m: len({hash(one) for one in [m.One((1, 2)), m.One((1, 2))]}),
    "hash_of_list": lambda m: isinstance(hash(m.Point(1)), int),
    "set": lambda m: setattr(m.One(()), "only", (1,)),
    "set_unknown": lambda m: setattr(m.One(()), "more", 1),
    "delete": lambda m: delattr(m.One(()), "only"),
    "replace": lambda m: repr(dataclasses.replace(m.Place(1, name="there"), y=5)),
    "asdict": lambda m: dataclasses.asdict(m.Place(1, tags=["a"])),
    "fields": lambda m: [f.name for f in dataclasses.fields(m.Place)],
    "match": lambda m: m.Place.__match_args__,
    "pickle": lambda m: [repr(pickle.loads(pickle.dumps(m.Place(4, 5), protocol))) for protocol in (2, 4, 5)],
    "copy": lambda m: repr([copy.copy(m.Point(4)), copy.deepcopy(m.Place(4))]),
    "slots": lambda m: hasattr(m.Point(1), "__dict__"),
}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(name for name in s if s[name]) or "plain")
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_record_is_a_dataclass(attempt: str, settings: dict[str, bool]) -> None:
    expected = outcome(lambda: ATTEMPTS[attempt](made(dataclasses.dataclass, settings, "made_by_dataclass")))
    found = outcome(lambda: ATTEMPTS[attempt](made(records.dataclass, settings, "made_by_records")))
    if attempt == "set_unknown" and settings["frozen"]:
        expected = (dataclasses.FrozenInstanceError, "cannot assign to field 'more'")
    assert found == expected


def test_nothing_is_compiled_before_the_first_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled functions are the price of a dataclass; a record has one, once it has an object."""
    compiled, run = [], exec

    def counted(source: Any, *names: Any) -> None:
        compiled.append(source)
        run(source, *names)

    monkeypatch.setattr("builtins.exec", counted)
    module = made(records.dataclass, {"frozen": True, "slots": True, "eq": True}, "made_by_records")
    assert compiled == [SOURCE]
    _ = module.Point(1), module.Point(2), module.Place(1)
    assert len(compiled) == 3
