"""If, Loop, Scan and SequenceMap. A body is a callable from its inputs to the tuple of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortconv.executor.algorithms.steps import EndlessLoopError, counted
from ortconv.executor.kernels.registry import kernel
from ortconv.ir.tensor import Array

Body = Callable[..., tuple[Any, ...]]

MOST_TRIPS = 1 << 24
"""Maximum number of iterations of a loop whose body cannot end it. One iteration takes some microseconds."""


@kernel("If")
def if_(condition: Array, *, then_branch: Body, else_branch: Body) -> tuple[Any, ...]:
    return tuple(then_branch() if condition.item() else else_branch())


@kernel("Loop")
def loop(
    max_trips: Array | None = None, condition: Array | None = None, *initial: Any, body: Body, n_outputs: int
) -> tuple[Any, ...]:
    trips = None if max_trips is None else int(max_trips.item())
    going = True if condition is None else bool(condition.item())
    if going and (trips is None or trips > MOST_TRIPS) and getattr(body, "keeps_condition", False):
        raise EndlessLoopError(
            f"the loop runs {'without end' if trips is None else f'{trips} times'}: its body never ends it, "
            f"the limit is {MOST_TRIPS} times",
            hint="give the loop a trip count, or let its body compute the condition",
        )
    count = len(initial)
    state: tuple[Any, ...] = initial
    collected: list[tuple[Any, ...]] = []
    i = 0
    while going and (trips is None or i < trips):
        proceed, *results = body(np.array(i, np.int64), np.array(going), *state)
        # Without a condition input the body's own condition still decides.
        going = bool(proceed.item())
        state = tuple(results[:count])
        collected.append(tuple(results[count:]))
        i += 1
    scans = [
        np.stack(values) if values else _nothing(body, 1 + count + j, 0)
        for j, values in enumerate(_columns(collected, n_outputs - count))
    ]
    return (*state, *scans)


def _columns(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    return [[row[j] for row in rows] for j in range(width)]


def _nothing(body: Body, output: int, axis: int) -> Array:
    """An empty stack of a body's output, with the type from the body's `output_types` if it is known."""
    types = getattr(body, "output_types", None)
    declared = types[output] if types else None
    if declared is None:
        return np.zeros(0, dtype=np.float32)
    shape = [d if isinstance(d, int) else 0 for d in declared.shape or ()]
    shape.insert(axis % (len(shape) + 1), 0)
    return np.zeros(shape, dtype=declared.dtype.numpy)


@kernel("Scan", since=9)
def scan(
    *inputs: Any,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    n_outputs: int,
) -> tuple[Any, ...]:
    count = len(inputs) - num_scan_inputs
    sources = _scanned(inputs[count:], scan_input_axes, scan_input_directions)
    state, columns = _scan(body, inputs[:count], sources, n_outputs - count)
    outputs = []
    for j, values in enumerate(columns):
        axis = scan_output_axes[j] if scan_output_axes else 0
        if not values:
            outputs.append(_nothing(body, count + j, axis))
            continue
        reverse = scan_output_directions and scan_output_directions[j]
        outputs.append(np.stack(values[::-1] if reverse else values, axis=axis))
    return (*state, *outputs)


@kernel("Scan", until=8)
def scan_8(
    lengths: Array | None,
    *inputs: Array,
    body: Body,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
    n_outputs: int,
) -> tuple[Array, ...]:
    count = len(inputs) - num_scan_inputs
    batch, longest = inputs[count].shape[:2]
    steps = [longest] * batch if lengths is None else lengths.tolist()
    results = []
    for i in range(batch):
        sources = _scanned([x[i, : steps[i]] for x in inputs[count:]], None, directions)
        state, columns = _scan(body, [x[i] for x in inputs[:count]], sources, n_outputs - count)
        stacks = [
            _lengthened(np.stack(values) if values else _nothing(body, count + j, 0), longest)
            for j, values in enumerate(columns)
        ]
        results.append([*state, *stacks])
    return tuple(np.stack(column) for column in _columns(results, n_outputs))


def _lengthened(x: Array, length: int) -> Array:
    out = np.zeros((length, *x.shape[1:]), dtype=x.dtype)
    out[: len(x)] = x
    return out


def _scanned(inputs: Sequence[Array], axes: Sequence[int] | None, directions: Sequence[int] | None) -> list[Array]:
    """The inputs with the scanned axis first and in scan order."""
    out = []
    for j, x in enumerate(inputs):
        x = np.moveaxis(x, axes[j] if axes else 0, 0)
        out.append(x[::-1] if directions and directions[j] else x)
    return out


def _scan(
    body: Body, initial: Sequence[Any], sources: Sequence[Array], width: int
) -> tuple[tuple[Any, ...], list[list[Any]]]:
    """The final state, and for each scan output its values of all steps."""
    state = tuple(initial)
    collected = []
    for i in range(len(sources[0]) if sources[0].size else counted(len(sources[0]))):
        results = tuple(body(*state, *(x[i, ...] for x in sources)))
        state = results[: len(state)]
        collected.append(results[len(state) :])
    return state, _columns(collected, width)


@kernel("SequenceMap")
def sequence_map(sequence: list[Any], *additional: Any, body: Body, n_outputs: int) -> tuple[list[Any], ...]:
    rows = []
    for i, item in enumerate(sequence):
        rows.append(body(item, *(x[i] if isinstance(x, list) else x for x in additional)))
    return tuple(_columns(rows, n_outputs))
