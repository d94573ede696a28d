"""Extensions: operand types and operations that drivers define, under a name in reversed domain order.

The upper 16 bits of a code are the prefix of its extension. Prefixes are assigned when an extension is first named, so
they differ from process to process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortconv.nnapi.errors import bad_data

BITS = 16
LARGEST = (1 << BITS) - 1


@dataclass(frozen=True)
class ExtensionOperand:
    """An operand type: its code within the extension, the type of one element, and whether it is a tensor or a scalar."""

    code: int
    dtype: np.dtype[Any]
    is_tensor: bool


@dataclass(frozen=True)
class Extension:
    """The declaration of an extension by a driver. Operations are not declared: the driver decides for each model which
    ones it supports.
    """

    name: str
    operands: tuple[ExtensionOperand, ...] = ()


Attributes = Mapping[tuple[str, int], bytes]
"""Values that clients pass to drivers in addition to a model, by (extension name, attribute code)."""

_prefixes: dict[str, int] = {}
_names = [""]
_declared: dict[str, Extension] = {}


def code_of(name: str, within: int) -> int:
    """The code of a type or operation of an extension. Raises BAD_DATA if `within` exceeds 16 bits, or for too many extensions."""
    if not 0 <= within <= LARGEST:
        raise bad_data(f"{within} is no code within an extension: those are 0 to {LARGEST}")
    if name not in _prefixes:
        if len(_names) > LARGEST >> 1:
            raise bad_data("there are too many extensions in use")
        _prefixes[name] = len(_names)
        _names.append(name)
    return _prefixes[name] << BITS | within


def split(code: int) -> tuple[str, int] | None:
    """The extension's name and the code within it; None if no extension has the code's prefix."""
    prefix = code >> BITS
    return (_names[prefix], code & LARGEST) if 0 < prefix < len(_names) else None


def declare(extension: Extension) -> None:
    """Register the types of an extension. Raises BAD_DATA if another driver has declared them differently."""
    known = _declared.setdefault(extension.name, extension)
    if known != extension:
        raise bad_data(f"the extension {extension.name} is declared already, with other types")


def operand(code: int) -> ExtensionOperand | None:
    """The declaration of a type; None if no driver has declared it."""
    found = split(code)
    if found is None or found[0] not in _declared:
        return None
    return next((one for one in _declared[found[0]].operands if one.code == found[1]), None)


def add_attribute(attributes: dict[tuple[str, int], bytes], name: str, code: int, data: bytes | None) -> None:
    """Add an attribute. Raises BAD_DATA if it exists."""
    code_of(name, code)
    if (name, code) in attributes:
        raise bad_data(f"the attribute {code} of {name} is there already")
    attributes[name, code] = data or b""
