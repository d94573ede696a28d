"""Extensions: operand types and operations that drivers define, under a name in reversed domain order."""

from __future__ import annotations

from collections.abc import Mapping

from ortconv.nnapi.errors import bad_data
from ortconv.nnapi.registry import BITS, LARGEST, Extension, declaration, prefix_of

Attributes = Mapping[tuple[str, int], bytes]
"""Values that clients pass to drivers in addition to a model, by (extension name, attribute code)."""


def code_of(name: str, within: int) -> int:
    """The code of a type or operation of an extension. Raises BAD_DATA if `within` exceeds 16 bits, or for too many extensions."""
    if not 0 <= within <= LARGEST:
        raise bad_data(f"{within} is not a code within an extension: those are 0 to {LARGEST}")
    prefix = prefix_of(name)
    if prefix is None:
        raise bad_data("there are too many extensions in use")
    return prefix << BITS | within


def declare(extension: Extension) -> None:
    """Register the types of an extension. Raises BAD_DATA if another driver has declared them differently."""
    if declaration(extension) != extension:
        raise bad_data(f"the extension {extension.name} is declared already, with other types")


def add_attribute(attributes: dict[tuple[str, int], bytes], name: str, code: int, data: bytes | None) -> None:
    """Add an attribute. Raises BAD_DATA if it exists."""
    code_of(name, code)
    if (name, code) in attributes:
        raise bad_data(f"the attribute {code} of {name} is there already")
    attributes[name, code] = data or b""
