"""`dataclass` at a tenth of its price, for the modules that small conversions and runs import.

The standard decorator compiles up to six functions for each class, which takes 0.3 ms: for forty classes a tenth of a small
conversion. Here the methods are shared, but for `__init__`, which is compiled when the first object of a class is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True):
        """What dataclasses.dataclass does with these arguments. `fields`, `replace` and `asdict` take the class. No InitVars."""
        if cls is None:
            return lambda cls: _made(cls, frozen, slots, eq)
        return _made(cls, frozen, slots, eq)


def _made(cls: type, frozen: bool, slots: bool, eq: bool) -> type:
    cls.__doc__ = cls.__doc__ or cls.__name__  # Else the decorator derives one from a signature, which takes long.
    written = {name for name, method in cls.__dict__.items() if method is not None}
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    methods = {"__init__": _first_init(cls, frozen), "__repr__": _repr}
    if eq:
        methods |= _equality(cls, frozen)
    if frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
    if frozen and slots:
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name in methods.keys() - written:
        setattr(cls, name, methods[name])
    return cls


# ------------------------------------------------------------------------------------------------------------------- __init__


def _first_init(cls: Any, frozen: bool) -> Callable[..., None]:
    """An __init__ that compiles the real one, which takes its place."""

    def init(self: Any, *values: Any, **named: Any) -> None:
        cls.__init__ = _compiled_init(cls, frozen)
        cls.__init__(self, *values, **named)

    return init


def _compiled_init(cls: Any, frozen: bool) -> Callable[..., None]:
    known: dict[str, Any] = {"MISSING": MISSING, "put": object.__setattr__}
    parameters, keywords, lines = ["self"], ["*"], []
    for field in fields(cls):
        if field.init:
            (keywords if field.kw_only else parameters).append(_parameter(field))
        value = _value(field)
        if value is not None:
            lines.append(f" put(self, {field.name!r}, {value})" if frozen else f" self.{field.name} = {value}")
        known |= {f"default_{field.name}": field.default, f"make_{field.name}": field.default_factory}
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    arguments = ", ".join(parameters + (keywords if len(keywords) > 1 else []))
    exec("\n".join([f"def __init__({arguments}):", *(lines or [" pass"])]), known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _parameter(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return f"{field.name}=default_{field.name}"
    return field.name if field.default_factory is MISSING else f"{field.name}=MISSING"


def _value(field: Field[Any]) -> str | None:
    """The expression that a field is set to; None where __init__ does not set it."""
    name = field.name
    if field.default_factory is not MISSING:
        return f"make_{name}() if {name} is MISSING else {name}" if field.init else f"make_{name}()"
    if field.init:
        return name
    return None if field.default is MISSING else f"default_{name}"


# --------------------------------------------------------------------------------------------------------- the other methods


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({shown})"


def _equality(cls: Any, frozen: bool) -> Mapping[str, Any]:
    """Objects of one class are equal where their compared fields are. Frozen ones have a hash."""
    compared = [field for field in fields(cls) if field.compare]
    values = _values(compared)

    def equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    if not frozen:
        return {"__eq__": equal, "__hash__": None}
    return {"__eq__": equal, "__hash__": lambda self: hash(values(self))}


def _values(compared: Iterable[Field[Any]]) -> Callable[[Any], tuple[Any, ...]]:
    """The function from an object to the values of these fields."""
    names = [field.name for field in compared]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _refuse_to_set(self: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
