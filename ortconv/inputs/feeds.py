"""Generates inputs for a model, from the types and shapes of its inputs and from the nodes that read them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import UnsupportedError, UsageError
from ortconv.inputs.categories import with_known_elements
from ortconv.inputs.operand_roles import (
    is_condition,
    is_float_index,
    is_size,
    must_not_be_zero,
    parameter,
    sequences,
    upper_bound,
)
from ortconv.inputs.problem import Problem, Sizes
from ortconv.inputs.repair import repair
from ortconv.inputs.shape_inputs import filled
from ortconv.inputs.shapes import infer_shapes
from ortconv.inputs.sizes import can_be_met, solve
from ortconv.ir.footprint import footprint
from ortconv.ir.graph import Graph, Value
from ortconv.ir.tensor import LARGEST_RANK, Array
from ortconv.ir.types import DType, MapType, SequenceType, TensorType, restored

Outputs = list[Any]
"""The outputs of a model, in its order."""

Feeds = dict[str, Any]

FREE_SIZES = (8, 32, 64, 1, 2, 16, 224)
"""Sizes of a free dimension with which the search begins, in this order."""

KINDS = ("drawn", "negative", "zeros", "large", "fraction")
"""Kinds of elements of generated inputs."""

LARGE = {DType.FLOAT16: 100.0, DType.FLOAT: 1e4, DType.DOUBLE: 1e4, DType.BFLOAT16: 1e4}
"""Factors by which floats are multiplied to make them large."""

LARGEST_INPUT = 1 << 40
"""The product of the sizes other than 0 above which numpy creates no array."""

SEEDS = 16
"""Seeds below this number draw conditions at random. Each multiple begins a block of seeds that draw other numbers and
use the conditions of one case.
"""

MASKS = (DType.BOOL, DType.INT32, DType.INT64)
"""Types of inputs that are masks."""


class Draw(NamedTuple):
    """The specification of a generated input: its shape, and the range of its elements; None if unspecified."""

    shape: tuple[int, ...] | None = None
    low: float | None = None
    high: float | None = None


def free_problem(graph: Graph, arrays: Mapping[str, Any], draws: Mapping[str, Draw]) -> Problem:
    """The inputs to generate, and their free dimensions; given arrays and draws fix symbols. Raises UsageError if they
    do not fit the model.
    """
    if arrays:
        from_arrays(graph, arrays, draws)
    given = _given_shapes(arrays, draws)
    others = [v for v in graph.inputs if v.name not in arrays]
    made = [v for v in others if v.const is None or v.name in draws]
    for value in made:  # before a search for sizes with many dimensions
        if (value.rank or 0) > LARGEST_RANK:
            raise UnsupportedError(f"input '{value.name}' has rank {value.rank}, numpy's limit is {LARGEST_RANK}")
    shaped = tuple(v for v in made if v.name in given)
    defaults = frozenset(others).difference(made)
    problem = Problem(graph, [v for v in made if v not in shaped], _fixed(graph, given), shaped, defaults)
    return _with_implied_lengths(problem) if problem.open_lengths else problem


def _given_shapes(arrays: Mapping[str, Any], draws: Mapping[str, Draw]) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs that the caller determines."""
    drawn = {name: draw.shape for name, draw in draws.items() if draw.shape is not None}
    return drawn | {name: np.shape(array) for name, array in arrays.items()}


def _fixed(graph: Graph, given: Mapping[str, tuple[int, ...]]) -> Sizes:
    """The sizes of symbols that given shapes fix."""
    pairs = (pair for v in graph.inputs if v.name in given for pair in zip(v.shape or (), given[v.name]))
    return {dim: size for dim, size in pairs if isinstance(dim, str)}


def _with_implied_lengths(problem: Problem) -> Problem:
    """The problem with fixed lengths of inputs that hold shapes, as far as the graph implies them: then the elements are free."""
    found = solve(problem, problem.first(FREE_SIZES[0], 1))
    known = {n: found.sizes[n] for n, least in problem.open_lengths.items() if found.sizes[n] >= least}
    return replace(problem, fixed=problem.fixed | {n: size for n, size in known.items() if n in found.implied})


class Choice(NamedTuple):
    """Sizes of the free dimensions of a problem, and the seed and kind of its inputs."""

    problem: Problem
    sizes: Sizes
    seed: int = 0
    kind: str = "drawn"


def sizes_to_try(problem: Problem, batch: int, *, keep_batch: bool = False) -> Iterator[tuple[Sizes, int]]:
    """Sizes of the free dimensions that meet the demands of the graph, and the bytes that a run with them needs.

    Only the first sizes if no inputs fit the graph. With `keep_batch`, the graph's declarations do not
    change the batch: models that were made dynamic later declare a batch of 1 inside.
    """
    if not problem.free:
        yield problem.fixed, 0
        return
    seen: list[Sizes] = []
    implied = frozenset(problem.batches) if keep_batch else frozenset()
    is_met = False
    for size in FREE_SIZES:
        found = solve(problem, problem.first(size, batch), implied)
        is_met = is_met or found.is_met
        if found.sizes not in seen:
            seen.append(found.sizes)
            yield found.sizes, footprint(problem.graph, found.shapes).bytes
        if size == FREE_SIZES[0] and not can_be_met(problem):
            return
    repaired = None if is_met else repair(problem, seen)
    if repaired is not None:
        yield repaired, footprint(problem.graph, infer_shapes(problem, repaired)).bytes


def fitting(
    problem: Problem, tried: Iterable[tuple[Sizes, int]], limit: int, seeds: Sequence[int] = (0,)
) -> Generator[Choice, None, int]:
    """A choice for each seed and each of the sizes that need at most `limit` bytes. Returns the fewest bytes that any needs."""
    seen: list[Sizes] = []
    needs = []
    for sizes, needed in tried:
        needs.append(needed)
        if needed <= limit and sizes not in seen:
            seen.append(sizes)
            yield from (Choice(problem, sizes, seed) for seed in seeds)
    return min(needs)


def make(
    problem: Problem, sizes: Sizes, seed: int = 0, draws: Mapping[str, Draw] | None = None, kind: str = "drawn"
) -> Feeds:
    """Generate inputs of these sizes, with elements of one of KINDS."""
    made: Feeds = {}
    held, draws = problem.held(sizes), draws or {}
    for value in (v for v in problem.graph.inputs if v in problem.made or v in problem.shaped):
        if value in held and value.name not in draws:
            made[value.name] = filled(value, held[value])
            continue
        shape = () if value in problem.shaped else problem.shape(value, sizes)
        lengths = None if value.name in draws else _lengths(problem, value, sizes)
        if lengths is not None:
            made[value.name] = lengths
            continue
        drawn = generate(value, shape, seed, draws.get(value.name, Draw()))
        made[value.name] = drawn if kind == "drawn" else changed(value, drawn, kind)
    free = {name: array for name, array in made.items() if name not in draws}
    return made | with_known_elements(problem.graph, free, seed, all_kinds=kind == "drawn")


def _lengths(problem: Problem, value: Value, sizes: Sizes) -> Array | None:
    """Lengths of sequences that are as long as the input with the sequences; None for values other than lengths."""
    batch = sequences(value)
    shape = () if batch is None else problem.shape(batch, sizes)
    if value.dtype is None or len(shape) < 2:
        return None
    return np.full(problem.shape(value, sizes), shape[1], value.dtype.numpy)


def changed(value: Value, drawn: Any, kind: str) -> Any:
    """Change the content drawn for an input to zeros, negative or large numbers, or numbers from 0 to 1. Indices and masks stay
    valid.
    """
    dtype = value.dtype
    is_number = dtype is not None and dtype is not DType.STRING and dtype.numpy.kind != "c"
    if dtype is None or not is_number or parameter(value, np.shape(drawn)) is not None:
        return drawn
    if kind == "zeros":
        return drawn if not dtype.is_float and _needs_ones(value) else np.zeros_like(drawn)
    if is_float_index(value):
        return drawn
    if dtype.is_float:
        wide = np.asarray(drawn, np.float64)
        if kind == "large":
            return np.asarray(wide * LARGE.get(dtype, 1.0), dtype.numpy)
        return np.asarray(-np.abs(wide) if kind == "negative" else np.abs(wide) % 0.99, dtype.numpy)
    is_byte = kind == "large" and dtype in (DType.UINT8, DType.INT8)
    return np.full_like(drawn, np.iinfo(dtype.numpy).max) if is_byte else drawn


def _needs_ones(value: Value) -> bool:
    """True for masks and divisors."""
    return must_not_be_zero(value) or (value.dtype in MASKS and upper_bound(value) == 2)


def generate(value: Value, shape: tuple[int, ...], seed: int, draw: Draw) -> Any:
    """Random content for one input: floats from the standard normal distribution, indices that are valid for the table
    that they index, even if they are floats, integers other than 0 for divisors, masks of 0 and 1.

    A mask begins with 1 along its last axis, so that every row of scores keeps an entry, even under a causal mask. The
    softmax of a row without entries would depend only on the rounding of its huge negative numbers.
    """
    type = value.type
    rng = np.random.default_rng([seed, zlib.crc32(value.name.encode("utf-8", "surrogateescape"))])
    if isinstance(type, SequenceType) and isinstance(type.element, TensorType):
        return [_array(rng, type.element.dtype, (2,), 2)]
    if isinstance(type, MapType) and isinstance(type.value, TensorType):
        return _map(rng, value, type.key, type.value.dtype)
    if not isinstance(type, TensorType):
        raise UsageError(
            f"cannot make up a value for input '{value.name}' of type {type}", hint="give inputs of your own"
        )
    shape = shape if draw.shape is None else draw.shape
    _check_possible(value, type.dtype, shape)
    if draw.low is not None and draw.high is not None:
        return _between(rng, value, type.dtype, shape, draw.low, draw.high)
    meant = parameter(value, shape)
    return _content(rng, value, type.dtype, shape, seed) if meant is None else meant


def _map(rng: np.random.Generator, value: Value, key: DType, element: DType) -> dict[Any, Any]:
    """Entries for about half of the keys that the model knows."""
    lists = (node.attrs.get(f"{key.name.lower()}_vocabulary") for node, _ in value.uses if node.op == "DictVectorizer")
    others = ("a", "b") if key is DType.STRING else (0, 1, 2)
    known = next((found for found in lists if isinstance(found, tuple)), others)
    keys = [k for k in known if rng.random() < 0.5] or known[:1]
    return dict(zip(keys, _array(rng, element, (len(keys),), 2).tolist()))


def _content(rng: np.random.Generator, value: Value, dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Content for an input that is no parameter: conditions, indices, divisors, masks, or numbers."""
    if seed >= SEEDS and is_condition(value):
        return np.full(shape, _condition(value, seed))
    bound = upper_bound(value)
    if is_float_index(value):
        return rng.integers(0, bound, shape).astype(dtype.numpy)
    made = _array(rng, dtype, shape, bound)
    if must_not_be_zero(value):
        made[made == 0] = 1
    if seed and is_size(value):
        made += 1
    if dtype in MASKS and bound == 2 and len(shape) > 1:
        made[..., :1] = 1
    return made


def _condition(value: Value, seed: int) -> bool:
    """The value of a condition. The seeds from SEEDS on count through all combinations of the graph's conditions."""
    assert value.graph is not None
    place = [v for v in value.graph.inputs if is_condition(v)].index(value)
    return bool((seed // SEEDS - 1) >> place & 1)


def _check_possible(value: Value, dtype: DType, shape: tuple[int, ...]) -> None:
    """Raise UnsupportedError for an input that numpy cannot hold."""
    if math.prod(filter(None, shape)) > LARGEST_INPUT:
        raise UnsupportedError(
            f"input '{value.name}' of shape {list(shape)} of {dtype.name.lower()} fits no memory",
            hint="give inputs of your own, or correct the model's declared shape",
        )


def _between(
    rng: np.random.Generator, value: Value, dtype: DType, shape: tuple[int, ...], low: float, high: float
) -> Array:
    """Elements from low to high; integers include both bounds."""
    kind = dtype.numpy.kind
    if dtype is DType.STRING or kind == "c":
        raise UsageError(f"input '{value.name}' is of type {value.type}, for which there is no range")
    if dtype.is_float:
        return np.asarray(rng.uniform(low, high, shape)).astype(dtype.numpy)
    if math.ceil(low) > math.floor(high):
        raise UsageError(f"input '{value.name}' is of type {value.type}, and no integer lies in {low:g}..{high:g}")
    drawn = rng.integers(math.ceil(low), math.floor(high), shape, endpoint=True)
    made = np.asarray(drawn).astype(dtype.numpy)
    if not np.array_equal(made.astype(np.int64), drawn):
        raise UsageError(f"input '{value.name}' is of type {value.type}, which does not hold {low:g}..{high:g}")
    return made


def _array(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], high: int) -> Array:
    if dtype is DType.STRING:
        return rng.choice(np.array(["a", "b", "ab", ""], dtype=object), shape)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in (DType.UINT8, DType.INT8):
        info = np.iinfo(dtype.numpy)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype.numpy)
    if dtype.numpy.kind in "iu" or dtype in (DType.INT4, DType.UINT4, DType.INT2, DType.UINT2):
        return rng.integers(0, high, shape).astype(dtype.numpy)
    if dtype.numpy.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype.numpy)
    return np.asarray(rng.standard_normal(shape)).astype(dtype.numpy)


def stated(inputs: Iterable[Value]) -> str:
    """The inputs of a model and their types, as hints state them."""
    return f"the model's inputs: {', '.join(f'{v.name} {v.type}' for v in inputs)}"


def from_arrays(graph: Graph, arrays: Mapping[str, Any], others: Collection[str] = ()) -> Feeds:
    """A user's arrays as feeds. Raises UsageError if an input is unknown, or missing and not among the others."""
    names = {v.name: v for v in graph.inputs}
    unknown = [name for name in arrays if name not in names]
    given = {*arrays, *others}
    missing = [name for name, v in names.items() if v.const is None and name not in given]
    if unknown or missing:
        what = f"there is no input '{unknown[0]}'" if unknown else f"input '{missing[0]}' is missing"
        raise UsageError(what, hint=stated(graph.inputs))
    return {name: restored(a, names[name].dtype) if isinstance(a, np.ndarray) else a for name, a in arrays.items()}
