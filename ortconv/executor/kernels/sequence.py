"""Sequences (lists), optionals (a value or None)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.executor.algorithms.steps import counted
from ortconv.executor.kernels.movement import integers, pieces
from ortconv.executor.kernels.registry import kernel
from ortconv.ir.tensor import Array


@kernel("SequenceConstruct")
def sequence_construct(*items: Any) -> list[Any]:
    return list(items)


@kernel("SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> list[Any]:
    return []


@kernel("SequenceLength")
def sequence_length(sequence: list[Any]) -> Array:
    return np.array(len(sequence), dtype=np.int64)


@kernel("SequenceAt")
def sequence_at(sequence: list[Any], position: Array) -> Any:
    return sequence[int(position.item())]


@kernel("SequenceInsert")
def sequence_insert(sequence: list[Any], item: Any, position: Array | None = None) -> list[Any]:
    at = len(sequence) if position is None else _position(position, len(sequence), len(sequence))
    return [*sequence[:at], item, *sequence[at:]]


@kernel("SequenceErase")
def sequence_erase(sequence: list[Any], position: Array | None = None) -> list[Any]:
    last = len(sequence) - 1
    at = last if position is None else _position(position, len(sequence), last)
    return sequence[:at] + sequence[at + 1 :]


def _position(position: Array, size: int, highest: int) -> int:
    at = int(position.item())
    if not -size <= at <= highest:
        raise IndexError(f"position {at} is outside a sequence of {size}")
    return at + size if at < 0 else at


@kernel("SplitToSequence")
def split_to_sequence(x: Array, split: Array | None = None, *, axis: int = 0, keepdims: int = 1) -> list[Array]:
    size = x.shape[axis]
    if split is None:
        parts = pieces(x, axis, [1] * counted(size))
        return list(parts) if keepdims else [part.squeeze(axis) for part in parts]
    if split.ndim:
        return list(pieces(x, axis, integers(split)))
    chunk = int(split.item())
    return list(pieces(x, axis, [chunk] * counted(-(-size // chunk))))


@kernel("ConcatFromSequence")
def concat_from_sequence(sequence: list[Array], *, axis: int, new_axis: int = 0) -> Array:
    return np.stack(sequence, axis=axis) if new_axis else np.concatenate(sequence, axis=axis)


@kernel("Optional")
def optional(value: Any = None, *, type: Any = None) -> Any:
    return value


@kernel("OptionalHasElement")
def optional_has_element(value: Any = None) -> Array:
    return np.array(value is not None)


@kernel("OptionalGetElement")
def optional_get_element(value: Any) -> Any:
    if value is None:
        raise ValueError("the optional is empty")
    return value
