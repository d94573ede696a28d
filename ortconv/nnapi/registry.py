"""The extensions in use: the prefix of each, and the types that drivers have declared. The same for all of the process.

The upper 16 bits of a code are the prefix of its extension. Prefixes are assigned when an extension is first named, so
they differ from process to process.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

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
    """The declaration of an extension by a driver, without operations: for each model, the driver tells which it supports."""

    name: str
    operands: tuple[ExtensionOperand, ...] = ()


_prefixes: dict[str, int] = {}
_names = [""]
_declared: dict[str, Extension] = {}
_naming = Lock()


def prefix_of(name: str) -> int | None:
    """The prefix of an extension; a new one gets the next number. None if there are too many extensions."""
    with _naming:
        if name not in _prefixes:
            if len(_names) > LARGEST >> 1:
                return None
            _prefixes[name] = len(_names)
            _names.append(name)
        return _prefixes[name]


def split(code: int) -> tuple[str, int] | None:
    """The extension's name and the code within it; None if no extension has the code's prefix."""
    prefix = code >> BITS
    return (_names[prefix], code & LARGEST) if 0 < prefix < len(_names) else None


def declaration(extension: Extension) -> Extension:
    """The declaration in force for an extension of this name: the first one."""
    return _declared.setdefault(extension.name, extension)


def operand(code: int) -> ExtensionOperand | None:
    """The declaration of a type; None if no driver has declared it."""
    found = split(code)
    if found is None or found[0] not in _declared:
        return None
    return next((one for one in _declared[found[0]].operands if one.code == found[1]), None)
