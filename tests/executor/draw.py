"""Random cases of operators of com.microsoft: shapes, types and attributes within what onnxruntime's CPU kernels take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

F32 = np.float32
EIGHT_BITS = (np.uint8, np.int8)


class Case(NamedTuple):
    """One node: its inputs (None for one left out), its attributes and how many outputs it has."""

    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = MappingProxyType({})
    n_outputs: int = 1


class Tolerance(NamedTuple):
    """Floats within rtol and atol; integers off by `integer` in at most `share` of the elements."""

    rtol: float = 1e-4
    atol: float = 1e-5
    integer: int = 0
    share: float = 0.0


class Operator(NamedTuple):
    draw: Callable[[Draw], Case]
    tolerance: Tolerance = Tolerance()
    domain: str = "com.microsoft"
    why: str = ""
    """Why integers may differ."""


class Draw:
    """Random choices."""

    def __init__(self, seed: Any) -> None:
        self.rng = np.random.default_rng(seed)

    def number(self, low: int, high: int) -> int:
        """Both inclusive."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, *choices: Any) -> Any:
        return choices[self.number(0, len(choices) - 1)]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def shape(self, low: int = 1, high: int = 4, size: int = 7) -> tuple[int, ...]:
        return tuple(self.number(1, size) for _ in range(self.number(low, high)))

    def floats(self, shape: Sequence[int] = (), dtype: Any = F32, spread: float = 1.0) -> Any:
        return np.asarray(self.rng.standard_normal(shape) * spread).astype(dtype)

    def positive(self, shape: Sequence[int] = (), low: float = 0.1, high: float = 1.0, dtype: Any = F32) -> Any:
        return np.asarray(self.rng.uniform(low, high, shape)).astype(dtype)

    def codes(self, shape: Sequence[int], dtype: Any) -> Any:
        """Integers over the whole range of the type."""
        info = np.iinfo(dtype)
        return np.asarray(self.rng.integers(info.min, info.max, tuple(shape), endpoint=True)).astype(dtype)

    def zero(self, dtype: Any, shape: Sequence[int] = ()) -> Any:
        return self.codes(shape, dtype)

    def optional(self, value: Any, share: float = 0.5) -> Any:
        return value if self.chance(share) else None

    def broadcastable(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to another."""
        cut = shape[self.number(0, len(shape)) :]
        return tuple(1 if self.chance(0.25) else n for n in cut)

    def types(self) -> tuple[Any, Any]:
        """Of activations and weights."""
        chosen: tuple[Any, Any] = self.pick((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))
        return chosen


def trimmed(inputs: Sequence[Any]) -> list[Any]:
    """Without the trailing ones that are left out."""
    found = list(inputs)
    while found and found[-1] is None:
        found.pop()
    return found


def geometry(d: Draw, rank: int, kernel: Sequence[int]) -> dict[str, Any]:
    """Strides, dilations and padding of a window over axes that are at least twice its extent."""
    attributes: dict[str, Any] = {}
    if d.chance():
        attributes["strides"] = [d.number(1, 3) for _ in range(rank)]
    if d.chance(0.3):
        attributes["dilations"] = [d.number(1, 2) for _ in range(rank)]
    match d.pick("none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"):
        case "pads":
            attributes["pads"] = [d.number(0, k - 1) for k in (*kernel, *kernel)]
        case "none":
            pass
        case auto:
            attributes["auto_pad"] = auto
            attributes.pop("dilations", None)
            # A stride beyond the window makes padding negative, which onnxruntime refuses or reads out of place.
            attributes["strides"] = [d.number(1, min(k, 2)) for k in kernel]
    return attributes
