"""Lists of operators, and of their types, that a reduced build of onnxruntime must contain."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ortconv.errors import FormatError, UsageError, located
from ortconv.files import read_text
from ortconv.ir.graph import Node
from ortconv.ir.model import Model
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import plain_domain, schema
from ortconv.ir.types import DType, MapType, SequenceType, TensorType, ValueType
from ortconv.ortformat.derived import resolved_schema
from ortconv.wording import escaped

CPP_TYPES = {
    DType.FLOAT: "float", DType.UINT8: "uint8_t", DType.INT8: "int8_t", DType.UINT16: "uint16_t",
    DType.INT16: "int16_t", DType.INT32: "int32_t", DType.INT64: "int64_t", DType.STRING: "std::string",
    DType.BOOL: "bool", DType.FLOAT16: "MLFloat16", DType.DOUBLE: "double", DType.UINT32: "uint32_t",
    DType.UINT64: "uint64_t", DType.BFLOAT16: "BFloat16", DType.FLOAT8E4M3FN: "Float8E4M3FN",
    DType.FLOAT8E4M3FNUZ: "Float8E4M3FNUZ", DType.FLOAT8E5M2: "Float8E5M2", DType.FLOAT8E5M2FNUZ: "Float8E5M2FNUZ",
}  # fmt: skip
"""The types that ONNX Runtime's own scripts know."""

NEWER_CPP_TYPES = {
    DType.INT4: "Int4x2", DType.UINT4: "UInt4x2", DType.INT2: "Int2x4", DType.UINT2: "UInt2x4",
    DType.FLOAT4E2M1: "Float4E2M1x2", DType.FLOAT8E8M0: "Float8E8M0",
}  # fmt: skip
"""Types of kernels that those scripts do not know. An entry may list them for an operator, but not for all operators."""

T = TypeVar("T")

KernelName = tuple[str, str]
"""(domain, operator); ONNX's own domain is "ai.onnx"."""


class Tracked(NamedTuple):
    """The inputs and outputs whose types an operator's kernel depends on."""

    inputs: tuple[int, ...] = (0,)
    outputs: tuple[int, ...] = ()


_BY_FIRST_INPUT = """
    Abs Add ArgMax ArgMin AveragePool BatchNormalization BitShift Ceil Clip Concat Conv CumSum DequantizeLinear Div Equal
    Exp Expand Floor Gemm Greater IsNaN Less Log LogSoftmax LpNormalization MatMul Max MaxPool Mean Min Mul Neg NonZero Pad
    QLinearConv QLinearMatMul Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Resize ReverseSequence RoiAlign Round Scatter ScatterElements
    ScatterND Shrink Sigmoid Sign Sin Softmax Split SplitToSequence Sqrt Sub Sum Tanh TopK Transpose Unique
"""
_BY_TWO_INPUTS = ("Gather", "GatherElements", "Pow", "Slice")
_BY_OUTPUT = (
    "ConstantOfShape", "DynamicQuantizeLinear", "Multinomial", "QuantizeLinear", "RandomNormal", "RandomNormalLike",
    "RandomUniform", "RandomUniformLike",
)  # fmt: skip

TRACKED: dict[KernelName, Tracked] = {
    **{("ai.onnx", op): Tracked() for op in _BY_FIRST_INPUT.split()},
    **{("ai.onnx", op): Tracked((0, 1)) for op in _BY_TWO_INPUTS},
    **{("ai.onnx", op): Tracked((), (0,)) for op in _BY_OUTPUT},
    **{(MICROSOFT, op): Tracked() for op in ("QLinearAdd", "QLinearMul", "QLinearConv")},
    ("ai.onnx", "Where"): Tracked((1,)),
    ("ai.onnx", "Cast"): Tracked((0,), (0,)),
}
"""The slots whose types ONNX Runtime's build can restrict, by operator: its lists, so traits do not decide."""

ONE_HOT = ("ai.onnx", "OneHot")
"""Its kernel depends on three types at once: those of inputs 0, 2 and 1."""


_WITH_INTEGERS = ("Add", "Concat", "Div", "Equal", "Greater", "Less", "Mul", "Neg", "Sub")

ALWAYS: dict[KernelName, frozenset[str]] = {
    **{("ai.onnx", op): frozenset({"int32_t", "int64_t"}) for op in _WITH_INTEGERS},
    ("ai.onnx", "DequantizeLinear"): frozenset({"int8_t", "int32_t", "uint8_t"}),
}
"""Types of input 0 that every build includes, even if the operator's entry omits them."""

ALL_TYPES = "!globally_allowed_types"
ALL_OPS = "!no_ops_specified_means_all_ops_are_required"

_OPERATOR = re.compile(r"[^,{]*")

Slots = dict[tuple[str, int], set[str]]
"""Types by (side, slot): the side is "inputs" or "outputs". OneHot has its triples of types at ("custom", 0)."""


NOT_LISTED = "the kernel is not listed"


class Missing(NamedTuple):
    """A kernel, or types of a kernel, that a build would lack."""

    domain: str
    version: int
    op: str
    what: str

    def __str__(self) -> str:
        return f"{self.domain};{self.version};{self.op}: {self.what}"


def _united(entries: Sequence[Slots]) -> Slots:
    """The union of several entries for a kernel, by slot."""
    slots = {slot for entry in entries for slot in entry}
    return {slot: set().union(*(entry.get(slot, ()) for entry in entries)) for slot in slots}


class RequiredOperators:
    """The operators that a build must contain, collected from models or read from a config.

    With `types`, the types that the models use are collected as well. An operator without an entry of types needs all its types.
    """

    def __init__(self, *, types: bool = False) -> None:
        self.labels: list[str] = []
        self.allowed: set[str] | None = None
        """If not None, the only types that a build includes, for all operators."""
        self.all_if_empty = False
        """True if the config contains the line after which a config without operators requires all operators."""
        self._operators: dict[str, dict[int, set[str]]] = {}
        self._types: dict[KernelName, Slots] = {}
        self._track = types

    @classmethod
    def read(cls, path: str | Path) -> RequiredOperators:
        """The config in a file. Raises FormatError, with the file, as `parse` does."""
        with located(path):
            return cls.parse(read_text(path, refusal=FormatError))

    @classmethod
    def parse(cls, text: str) -> RequiredOperators:
        """Parse a config. Raises FormatError for lines that ONNX Runtime's build cannot read."""
        found = cls()
        for number, line in enumerate(map(str.strip, text.splitlines()), 1):
            try:
                found._read(line)
            except RecursionError:
                raise FormatError(f"line {number}: types are nested too deeply") from None
            except ValueError as error:
                raise FormatError(f"line {number}: {error}") from error
        return found

    def _read(self, line: str) -> None:
        if line.startswith("# - "):
            self.labels.append(line.removeprefix("# - "))
        elif line == ALL_OPS:
            self.all_if_empty = True
        elif line.startswith(f"{ALL_TYPES};"):
            self._read_types(line)
        elif line and not line.startswith("#"):
            self._read_operators(line)

    def _read_types(self, line: str) -> None:
        if self.allowed is not None:
            raise ValueError(f"{ALL_TYPES} stands twice")
        self.allowed = {name.strip() for name in line.split(";")[1].split(",")}
        if unknown := self.allowed - set(CPP_TYPES.values()):
            raise ValueError(f"{', '.join(sorted(unknown))[:200]} is not a type of ONNX Runtime")

    def _read_operators(self, line: str) -> None:
        parts = line.split(";")
        if len(parts) != 3:
            raise ValueError(f"{len(parts) - 1} semicolons: DOMAIN;VERSIONS;OPERATORS has 2")
        domain = parts[0].strip() or "ai.onnx"
        versions = [_number(version) for version in parts[1].split(",")]
        for op, types in _entries(parts[2].strip()):
            for version in versions:
                self._add(domain, version, op)
            if types is not None:
                self._types[domain, op] = types

    def _add(self, domain: str, version: int, op: str) -> None:
        self._operators.setdefault(domain, {}).setdefault(version, set()).add(op)

    def add(self, model: Model) -> None:
        """Add the operators of a model in its present form."""
        for node in model.graph.walk():
            domain = node.domain or "ai.onnx"
            self._add(domain, resolved_schema(node).since, node.op)
            if self._track:
                for slot, name in _used(domain, node):
                    self._types.setdefault((domain, node.op), {}).setdefault(slot, set()).add(name)

    def merge(self, other: RequiredOperators) -> None:
        """Add the operators and types of another config. If one of the two needs all types of an operator, the result does, too."""
        limits = [self.allowed, other.allowed]
        if any(limits) and (self._types or other._types):
            raise UsageError(
                "one config limits types for all operators, another for each",
                hint="make both of models: ortconv ops from DIR --types",
            )
        self._merge_types(other)
        self.allowed = None if None in limits else (self.allowed or set()) | (other.allowed or set())
        if self.is_everything or other.is_everything:
            self._operators, self._types, self.all_if_empty = {}, {}, True
        else:
            for row in other.versions():
                self._add(*row)
            self.all_if_empty |= other.all_if_empty
        self.labels = list(dict.fromkeys((*self.labels, *other.labels)))

    def _merge_types(self, other: RequiredOperators) -> None:
        kernels, others = self._kernels(), other._kernels()
        for kernel in kernels | others:
            entries = [c._types.get(kernel) for c, has in ((self, kernels), (other, others)) if kernel in has]
            self._types.pop(kernel, None)
            if all(entries):
                self._types[kernel] = _united([entry for entry in entries if entry])

    @property
    def is_everything(self) -> bool:
        """True if all operators are required."""
        return self.all_if_empty and not self._operators

    @property
    def has_types(self) -> bool:
        """True if types are limited, for all operators or for some."""
        return self.allowed is not None or bool(self._types)

    def versions(self) -> Iterator[tuple[str, int, str]]:
        """Domain, version and name of each listed operator."""
        for domain, versions in self._operators.items():
            for version, ops in versions.items():
                yield from ((domain, version, op) for op in ops)

    def _kernels(self) -> set[KernelName]:
        return {(domain, op) for domain, _, op in self.versions()}

    def missing(self, needed: RequiredOperators) -> list[Missing]:
        """The needed kernels and types that a build with this config lacks, in the order of a config.

        A version selects the kernel that the operator has at that version, even if it is the version of a model's operator set.
        """
        has = {(domain, since_of(domain, op, version), op) for domain, version, op in self.versions()}
        found = []
        for domain, version, op in sorted(needed.versions()):
            if (domain, version, op) in has or self.is_everything:
                lacks = self._missing_types((domain, op), needed._types.get((domain, op), {}))
                found += [Missing(domain, version, op, what) for what in lacks]
            else:
                others = ", ".join(str(v) for d, v, o in sorted(has) if (d, o) == (domain, op))
                what = f"{NOT_LISTED}, but that of {others}" if others else NOT_LISTED
                found.append(Missing(domain, version, op, what))
        return found

    def _missing_types(self, kernel: KernelName, needed: Slots) -> list[str]:
        entry = self._types.get(kernel)
        lacks = []
        for (side, slot), types in sorted(needed.items()):
            if self.allowed is not None:
                listed = self.allowed
                types = {name for t in types for name in t.split(",")}
            elif entry is None:
                continue
            else:
                listed = entry.get((side, slot), set()) | (
                    ALWAYS.get(kernel, set()) if (side, slot) == ("inputs", 0) else set()
                )
            if absent := ", ".join(sorted(types - listed)):
                where = "for input, output and depth" if side == "custom" else f"of {side.removesuffix('s')} {slot}"
                lacks.append(f"{absent} {where} is not listed, but {', '.join(sorted(listed)) or 'no type'}")
        return lacks

    def text(self, labels: Iterable[str] | None = None) -> str:
        """The text of a required_operators.config. Its header lists `labels`, the paths of models."""
        shown = self.labels if labels is None else labels
        lines = ["# Generated from model/s:", *(f"# - {escaped(str(label))}" for label in sorted(shown, key=Path))]
        if self.allowed is not None:
            lines.append(f"{ALL_TYPES};{','.join(sorted(self.allowed))}")
        if self.all_if_empty:
            lines.append(ALL_OPS)
        for domain, versions in sorted(self._operators.items()):
            for version, ops in sorted(versions.items()):
                rows = ",".join(op + _entry(self._types.get((domain, op), {})) for op in sorted(ops))
                lines.append(f"{domain};{version};{rows}")
        return "\n".join(lines) + "\n"


def since_of(domain: str, op: str, version: int) -> int:
    """The version of the operator in an operator set of this version."""
    found = schema(plain_domain(domain), op, version)
    return version if found is None else found.since


def _used(domain: str, node: Node) -> Iterator[tuple[tuple[str, int], str]]:
    """The types in which a node uses its kernel, by slot."""
    if (domain, node.op) == ONE_HOT:
        first, depth, last = (_cpp_type(node.inputs[i]) for i in range(3))
        yield ("custom", 0), f"{first},{last},{depth}"
    tracked = TRACKED.get((domain, node.op), Tracked((), ()))
    for side, slots, values in (("inputs", tracked.inputs, node.inputs), ("outputs", tracked.outputs, node.outputs)):
        for slot in slots:
            if slot < len(values) and values[slot] is not None:
                yield (side, slot), _cpp_type(values[slot])


def _entries(text: str) -> Iterator[tuple[str, Slots | None]]:
    """The operators of a line, each with its types or None."""
    at = 0
    while at < len(text):
        match = _OPERATOR.match(text, at)
        assert match is not None
        name, at = match[0], match.end()
        types = None
        if text[at : at + 1] == "{":
            found, at = json.JSONDecoder().raw_decode(text, at)
            types = _slots(found)
        if text[at : at + 1] not in ("", ","):
            raise ValueError(f"{reprlib.repr(text[at:])} stands where a comma should")
        at += 1
        yield name.strip(), types


def _slots(entry: Any) -> Slots:
    """The types in a JSON entry."""
    slots: Slots = {}
    for side, found in _of_kind(dict, entry, "an object").items():
        if side == "custom":
            slots[side, 0] = {",".join(_names(triple)) for triple in _of_kind(list, found, "a list")}
        elif side in ("inputs", "outputs"):
            by_slot = _of_kind(dict, found, "an object")
            slots.update({(side, _number(slot)): set(_names(types)) for slot, types in by_slot.items()})
        else:
            raise ValueError(f"'{side}' is not one of inputs, outputs and custom")
    return slots


def _number(text: str) -> int:
    """Parse a version or slot number."""
    if re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII) is None:
        raise ValueError(f"invalid literal for a number from 0 on: {reprlib.repr(text)}")
    return int(text)


def _of_kind(kind: type[T], found: Any, what: str) -> T:
    if not isinstance(found, kind):
        raise ValueError(f"{reprlib.repr(found)} stands where {what} should")
    return found


def _names(found: Any) -> list[str]:
    if not all(isinstance(name, str) for name in _of_kind(list, found, "a list")):
        raise ValueError(f"{reprlib.repr(found)} stands where a list of types should")
    return list(found)


def _entry(slots: Slots) -> str:
    """The JSON text that follows an operator's name; empty without types."""
    entry: dict[str, Any] = {}
    for (side, slot), found in sorted(slots.items()):
        if side == "custom":
            entry[side] = sorted(triple.split(",") for triple in found)
        else:
            entry.setdefault(side, {})[slot] = sorted(found)
    return json.dumps(entry) if entry else ""


def _cpp_type(value: object) -> str:
    return _cpp(getattr(value, "type", None))


def _cpp(type: ValueType | None) -> str:
    if isinstance(type, TensorType):
        return CPP_TYPES.get(type.dtype) or NEWER_CPP_TYPES.get(type.dtype, "unknown")
    if isinstance(type, SequenceType):
        return _cpp(type.element)
    if isinstance(type, MapType):
        return f"std::map<{CPP_TYPES[type.key]},{_cpp(type.value)}>"
    return "unknown"
