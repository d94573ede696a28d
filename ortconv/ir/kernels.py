"""The kernels of ONNX Runtime's CPU provider by operator, version and types, and the release that introduced each.

`releases.json` and `kernels.txt` hold the data of the released wheels; `schemas/releases.py` writes them. A release is a position
in `releases()`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import Schema, rows, schema, schema_of, schema_of_id, serves, type_arguments
from ortconv.ir.types import Dim, DType, OptionalType, SequenceType, Shape, TensorType, ValueType

UNKNOWN = ""
"""The type of a value whose type is unknown."""

TENSORS = {dtype: TensorType(dtype).notation for dtype in DType}
"""Tensor types in the notation of kernels."""

KernelTypes = tuple[str | None, ...]

WIDER = {"tensor(float16)": "tensor(float)"}


@cache
def _document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("releases.json").read_text(encoding="utf-8"))
    return found


_kernels = partial(rows, "kernels.txt")
"""The kernels by domain:operator, as JSON: first and last version, types, first and last release of each."""


class KernelUse(NamedTuple):
    """An operator as a node uses it: types of inputs and outputs, None if absent; shapes of the inputs and the first output."""

    schema: Schema
    inputs: KernelTypes
    outputs: KernelTypes
    attrs: Mapping[str, Attribute]
    shapes: Sequence[Shape | None]
    result: Shape | None = None

    def attr(self, name: str) -> Attribute | None:
        return self.attrs.get(name, self.schema.defaults.get(name))

    def has_input(self, slot: int) -> bool:
        return slot < len(self.inputs) and self.inputs[slot] is not None

    def dim(self, slot: int, axis: int) -> Dim:
        """A dimension of an input; None if it is unknown."""
        shape = self.shapes[slot] if slot < len(self.shapes) else None
        return shape[axis] if shape is not None and axis < len(shape) else None


def use_of(node: Node) -> KernelUse | None:
    """The use of its operator by a node; None if the operator is unknown."""
    found = schema_of(node)
    if found is None:
        return None
    *shapes, result = [None if v is None else v.shape for v in (*node.inputs, node.output(0))]
    return KernelUse(found, _texts(node.inputs), _texts(node.outputs), node.attrs, shapes, result)


def _texts(values: Sequence[Value | None]) -> KernelTypes:
    return tuple([None if v is None else type_text(v.type) for v in values])


def type_text(type: ValueType | None) -> str:
    """A type in the notation of kernels. Maps and sparse tensors count as unknown: few kernels distinguish them."""
    if isinstance(type, TensorType):
        return TENSORS[type.dtype]
    if isinstance(type, (SequenceType, OptionalType)):
        inner = type_text(type.element)
        return f"{type.kind}({inner})" if inner else UNKNOWN
    return UNKNOWN


# ---------------------------------------------------------------------- kernels


def has_kernel(node: Node, release: int | None = None) -> bool:
    """True if `release`, by default the newest, and all later ones have a kernel for the node, or if it is custom."""
    return node.domain not in _domains() or _is_served(_first(node), release)


def lacks_kernel(node: Node, release: int | None = None) -> bool:
    """True if there is no kernel for a node, not even one that computes it in float32 between Casts."""
    return not has_kernel(node, release) and not _is_served(_first(node, cast=True), release)


def _is_served(first: int | None, release: int | None) -> bool:
    return first is not None and (release is None or first <= release)


def _first(node: Node, *, cast: bool = False) -> int | None:
    """The first release that runs a node; None if none does. With `cast`, float16 may be computed in float32."""
    if node.domain == "" and ("", node.op) not in FORMS:  # a version of an ONNX operator never changes
        return _first_standard(node.op, node.opset, _texts(node.inputs), _texts(node.outputs), cast)
    return _first_use(use_of(node), cast)


@cache
def _first_standard(op: str, opset: int, inputs: KernelTypes, outputs: KernelTypes, cast: bool) -> int | None:
    found = schema("", op, opset)
    return _first_use(None if found is None else KernelUse(found, inputs, outputs, {}, ()), cast)


def _first_use(use: KernelUse | None, cast: bool) -> int | None:
    if use is None:
        return None
    firsts = [first_release(u) for u in ((use, _widened(use)) if cast else (use,))]
    return min((first for first in firsts if first is not None), default=None)


def _widened(use: KernelUse) -> KernelUse:
    """The same use with float32 instead of float16."""
    inputs, outputs = (tuple([t and WIDER.get(t, t) for t in types]) for types in (use.inputs, use.outputs))
    return use._replace(inputs=inputs, outputs=outputs)


@cache
def _first_kernel(op_id: str, inputs: KernelTypes, outputs: KernelTypes) -> int | None:
    """The first release since which every release has a kernel for an operator with these types; None if the newest has none."""
    served = _serving(op_id, inputs, outputs)
    oldest = len(releases())
    while (since := min((s for s, until in served if s < oldest <= until + 1), default=oldest)) < oldest:
        oldest = since
    return None if oldest == len(releases()) else oldest


def _serving(op_id: str, inputs: KernelTypes, outputs: KernelTypes) -> list[tuple[int, int]]:
    """(first, last) release of each kernel for an operator with these types."""
    found = schema_of_id(op_id)
    assert found is not None
    sides, places = (inputs, outputs), type_arguments(found)
    kernels = json.loads(_kernels().get(f"{found.domain}:{found.op}", "[]"))
    return [
        (since, until)
        for first, last, types, since, until in kernels
        if serves(found.since, first, last)
        and all(_type_at(sides, places.get(name, ())) in (UNKNOWN, *_types(n)) for name, n in types.items())
    ]


@cache
def newest_kernels() -> Mapping[str, frozenset[tuple[int, int]]]:
    """The kernels of the newest release by DOMAIN:OPERATOR, each as the (first, last) operator version that it serves."""
    newest = len(releases()) - 1
    found = {
        name: frozenset((first, last) for first, last, _, _, until in json.loads(row) if until >= newest)
        for name, row in _kernels().items()
    }
    return {name: served for name, served in found.items() if served}


def _type_at(sides: tuple[KernelTypes, KernelTypes], places: Sequence[tuple[int, int]]) -> str:
    """The type at the first of `places` that the node has."""
    types = (sides[side][slot] for side, slot in places if slot < len(sides[side]))
    return next((type for type in types if type), UNKNOWN)


# ---------------------------------------------------------------------- releases


def releases() -> Sequence[str]:
    """The known releases of ONNX Runtime, oldest first, such as "1.18"."""
    names: list[str] = _document()["releases"]
    return names


def release_named(name: str) -> int:
    """The position of a release, given as 1.18 or 1.18.1. Raises ValueError for an unknown release."""
    return list(releases()).index(".".join(name.split(".")[:2]))


def first_release(use: KernelUse) -> int | None:
    """The first release since which every release runs this use of an operator; None if the newest does not."""
    oldest = _first_kernel(use.schema.id, use.inputs, use.outputs)
    if oldest is None:
        return None
    known, key = _document(), use.schema.id
    attributes, inputs = later_attributes(use.schema), known["inputs"].get(key, {})
    count = max((i + 1 for i, type in enumerate(use.inputs) if type is not None), default=0)
    find = FORMS.get((use.schema.domain, use.schema.op))
    later: list[int] = [oldest, inputs.get(str(count), 0)]
    later += [known["forms"][form] for form in (find(use) if find else ())]
    later += [attributes.get(name, 0) for name, value in use.attrs.items() if value != use.schema.defaults.get(name)]
    return max(later)


def later_attributes(found: Schema) -> Mapping[str, int]:
    """Attributes that an operator got after the release that introduced it, with their release."""
    later: dict[str, int] = _document()["attributes"].get(found.id, {})
    return later


def first_release_of(node: Node, *, cast: bool = False) -> int:
    """The first release that runs a node. It is the oldest known release if none has a kernel, or if the operator is custom.

    With `cast`, float16 may be computed in float32.
    """
    return _first(node, cast=cast) or 0


def first_release_of_imports(graph: Graph) -> int:
    """The first release that supports the versions of all operator sets used by a model's nodes."""
    found, domains = 0, {node.domain for node in graph.walk()}
    for domain, versions in _document()["opsets"].items():
        if domain in domains:
            wanted = graph.opset(domain)
            newer = [first for version, first in versions.items() if int(version) <= wanted]
            found = max(found, *newer, 0)
    return found


def newest_opset(release: int) -> int:
    """The newest version of ONNX's operators that a release supports, given by position."""
    return max((int(version) for version, first in _document()["opsets"][""].items() if first <= release), default=17)


def first_release_of_form(name: str) -> int:
    """The first release that runs a form of an operator that is newer than the operator."""
    return int(_document()["forms"][name])


def first_release_of_action(action: str) -> int:
    """The first release that supports a saved action."""
    return int(_document()["actions"].get(action, 0))


# ---------------------------------------------------------------------- forms of operators


def _activation(use: KernelUse) -> Iterator[str]:
    activation = use.attr("activation")
    if activation in ("HardSwish", "HardSigmoid"):
        yield f"{use.schema.op}_{activation}"


def _attention(use: KernelUse) -> Iterator[str]:
    """Present-day attributes; a score bias, and its broadcast over heads or batches; past keys; absent biases."""
    op, heads = use.schema.op, use.attr("num_heads")
    if op == "Attention":
        yield f"{op}_today"
    if use.has_input(5):
        yield f"{op}_bias"
        if heads != 1 and use.dim(5, 1) != heads:
            yield f"{op}_broadcast_bias"
        if use.dim(5, 0) is None or use.dim(5, 0) != use.dim(0, 0):
            yield f"{op}_batch_bias"
    if op == "MultiHeadAttention":
        if not use.has_input(3):
            yield f"{op}_without_biases"
        if use.has_input(6):
            yield f"{op}_past"
            if use.dim(1, 3) is not None:
                yield f"{op}_past_heads"


def _zero_point(use: KernelUse) -> Iterator[str]:
    """A QuantizeLinear or DequantizeLinear without a zero point."""
    if not use.has_input(2):
        yield f"{use.schema.op}_without_zero_point"


def _bits(use: KernelUse) -> Iterator[str]:
    """A product with constants of another number of bits than 4."""
    bits = use.attr("bits")
    if bits in (2, 8):
        yield f"{use.schema.op}_{bits}_bits"


def _transform(use: KernelUse) -> Iterator[str]:
    """An inverse transform of half a spectrum."""
    if use.attr("inverse") and use.attr("onesided"):
        yield f"{use.schema.op}_onesided_inverse"


CUBIC_LAST = "Resize_cubic_channels_last"


def _resize(use: KernelUse) -> Iterator[str]:
    """A cubic Resize of the axes before the channels."""
    after = use.result or ()
    if use.attr("mode") != "cubic" or use.attr("antialias") or len(after) < 3:
        return
    if use.dim(0, 1) != after[1] and use.dim(0, len(after) - 1) == after[-1]:
        yield CUBIC_LAST


FORMS: dict[tuple[str, str], Callable[[KernelUse], Iterable[str]]] = {
    ("", "DFT"): _transform,
    (MICROSOFT, "MatMulNBits"): _bits,
    (MICROSOFT, "QuantizeLinear"): _zero_point,
    (MICROSOFT, "DequantizeLinear"): _zero_point,
    ("", "Resize"): _resize,
    (MICROSOFT, "FusedConv"): _activation,
    ("com.microsoft.nchwc", "Conv"): _activation,
    (MICROSOFT, "Attention"): _attention,
    (MICROSOFT, "MultiHeadAttention"): _attention,
}
"""Forms of use that are newer than the operator and are neither attributes nor inputs. A function returns the names of the forms
of a use; each is the name of the model that `schemas/releases.py` tries: schemas/release_forms/NAME.txt.
"""


@cache
def _types(number: int) -> frozenset[str]:
    return frozenset(_document()["types"][number].split())


@cache
def _domains() -> frozenset[str]:
    return frozenset(key.rpartition(":")[0] for key in _kernels())
