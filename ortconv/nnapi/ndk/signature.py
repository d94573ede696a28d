"""Parses C declarations of the NDK's functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_DECLARATION = re.compile(r"(?P<result>\w+) (?P<name>\w+)\((?P<parameters>.*)\)")
_PARAMETER = re.compile(r"(?P<type>.*?[ *])(?P<name>\w+)(?P<null>\??)(?:=(?P<otherwise>\S+))?")
SIGNED = frozenset({"int", "int32_t", "int64_t", "bool", "ANeuralNetworksOperationType"})
UNSIGNED = frozenset({"uint16_t", "uint32_t", "uint64_t", "size_t"})
_COUNT_BEFORE = frozenset({"inputCount", "outputCount", "rank"})
_COUNT_BEHIND = frozenset({"numDevices", "numOfDependencies", "length"})


class Parameter(NamedTuple):
    type: str
    """The C type, such as `const uint32_t*`."""
    name: str
    may_be_null: bool = False
    otherwise: int | None = None
    """The result that is written before any check."""

    @property
    def is_pointer(self) -> bool:
        return self.type.endswith("*")

    @property
    def is_result(self) -> bool:
        """True if the function writes a result to the address in this parameter."""
        if self.type.endswith("**"):
            return not self.type.endswith("const**") and "const*" not in self.type
        target = self.type.removesuffix("*")
        return self.is_pointer and target in (*SIGNED, *UNSIGNED, "AHardwareBuffer_Desc")

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


@dataclass(frozen=True, slots=True)
class Signature:
    """A parsed C declaration, see `functions.ROWS`."""

    result: str
    name: str
    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, declaration: str) -> Signature:
        found = _DECLARATION.fullmatch(declaration)
        assert found is not None, declaration
        texts = [] if found["parameters"] == "void" else found["parameters"].split(", ")
        return cls(found["result"], found["name"], tuple(map(_parameter, texts)))

    @property
    def is_free(self) -> bool:
        return self.name.endswith(("_free", "_release"))

    @property
    def returns_number(self) -> bool:
        """True if the function returns a number instead of a result code."""
        return self.result.endswith("64_t")

    def count_of(self, at: int) -> int | None:
        """The index of the parameter with the number of elements, or bytes, at the pointer with index `at`."""
        if self.parameters[at].is_result or not self.parameters[at].is_pointer:
            return None
        for neighbor, names in ((at - 1, _COUNT_BEFORE), (at + 1, _COUNT_BEHIND)):
            if 0 <= neighbor < len(self.parameters) and self.parameters[neighbor].name in names:
                return neighbor
        return None

    def __str__(self) -> str:
        return f"{self.result} {self.name}({', '.join(map(str, self.parameters)) or 'void'})"


def _parameter(text: str) -> Parameter:
    found = _PARAMETER.fullmatch(text)
    assert found is not None, text
    otherwise = None if found["otherwise"] is None else int(found["otherwise"], 0)
    return Parameter(found["type"].rstrip(), found["name"], bool(found["null"]), otherwise)
