"""Texts of boxes: operators, shapes, constants, bytes, and how wide they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.schema import schema_of
from ortconv.ir.tensor import Tensor
from ortconv.report.page import clean
from ortconv.wording import BYTES, scaled

LONGEST = 30
"""Characters of a text in a box."""

QUANTIZING = ("QuantizeLinear", "DequantizeLinear")

FONT = 12.0
SMALL = 10.0
"""Sizes of the first line of a box and of the others, in pixels."""


def operators(nodes: Iterable[Node], most: int = 3) -> str:
    """The operators of nodes with their counts, most frequent first, those that only quantize last."""
    counts = sorted(Counter(n.op for n in nodes).items(), key=lambda row: (row[0] in QUANTIZING, -row[1]))
    shown = [_times(short(op, 18), count) for op, count in counts[:most]]
    return ", ".join(shown) + (", …" if len(counts) > most else "")


def _times(op: str, count: int) -> str:
    return f"{op} ×{count}" if count > 1 else op


def block_name(nodes: Sequence[Node]) -> str:
    """A name for a block without scopes: its operators, or the one that most of its products come from."""
    ops = [n.op for n in nodes if n.op not in QUANTIZING]
    quantized = "quantized " if len(ops) < len(nodes) else ""
    chain = " + ".join(_times(op, len(list(run))) for op, run in groupby(ops))
    if 0 < len(chain) <= LONGEST:
        return quantized + chain
    products = Counter(n.op for n in nodes if traits(n).has(Trait.SUMS)).most_common(1)
    leading = f"{short(products[0][0])} " if products else ""
    return f"{quantized}{leading}block of {len(nodes)} nodes"


def constants(node: Node) -> str:
    """The constants of a node by their formal names, such as "W 64×3×3×3, B 64"; a single element as its value."""
    formal = schema_of(node)
    found: list[str] = []
    for slot, value in enumerate(node.inputs):
        if value is None or value.constant is None:
            continue
        parameter = None if formal is None else formal.formal_input(slot)
        name = f"input {slot}" if parameter is None else parameter.name
        found.append(f"{name} {_held(value.constant)}")
        if len(", ".join(found)) > LONGEST:
            return ", ".join([*found[:-1], "…"]) if len(found) > 1 else short(found[0])
    return ", ".join(found)


def _held(constant: Tensor) -> str:
    """The value of a single element, otherwise the shape."""
    if constant.size != 1:
        return "×".join(map(str, constant.shape))
    element = constant.item()
    return f"= {element:.4g}" if isinstance(element, float) else f"= {short(str(element))}"


def shape(value: Value | None) -> str:
    """The shape of a tensor, such as 1×3×224×224."""
    if value is None or value.shape is None:
        return "unknown shape"
    return "×".join("?" if d is None else str(d) for d in value.shape) or "scalar"


def byte_text(count: int) -> str:
    """A number of bytes for people."""
    value, unit = scaled(count, BYTES)
    return f"{value:.3g} {unit}"


def short(text: str, most: int = LONGEST) -> str:
    """The text with its middle cut out if it is long, and control characters replaced."""
    text = clean(text)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most - most // 2) :]}"


_NARROW = frozenset("iljI.,:;'|!/\\()[]{}tfr \"`·")
_WIDE = frozenset("mwMW%@—…")


def text_width(text: str, font: float) -> float:
    """An upper bound of the width of a text in the usual sans-serif fonts, in pixels."""
    return font * sum(0.42 if c in _NARROW else 1.0 if c in _WIDE or ord(c) > 0x2FF else 0.72 for c in text)
