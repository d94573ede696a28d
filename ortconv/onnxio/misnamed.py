"""Checks the names of declared dimensions: that of an input may be at a value of another size.

Exporters name the dimensions of outputs as their users state them, or as they guess. onnxruntime ignores these names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count, islice

from ortconv.errors import OrtconvError
from ortconv.ir.symbols import with_stated_sizes
from ortconv.ir.types import Dim, TensorType, ValueType
from ortconv.onnxio.build import TypeReader
from ortconv.onnxio.infer import infer_model
from ortconv.onnxio.messages import input_symbols
from ortconv.onnxproto import GraphProto, ModelProto
from ortconv.watch import risky

LEAST_PRIME = 101
"""The sizes tried are primes from here on: products and sums of them do not equal one of them by chance."""

INVENTED_BY_TORCH = re.compile(r".+_dim_\d+$")


def without_doubtful(
    graph: GraphProto, declared: dict[str, ValueType], symbols: Iterable[str], *, is_body: bool
) -> dict[str, ValueType]:
    """The declared types of a graph, without the names that torch invents if several dimensions of outputs have them.

    torch gives one name to dimensions of which it knows nothing, such as a batch and a height, or heights of several outputs.
    It gives names of the model's outputs to dimensions of a body's outputs, too, so none of these counts. `symbols` are those
    of the model's inputs.
    """
    shapes = {info.name: _dims(declared.get(info.name)) for info in graph.output}
    names = Counter(filter(_is_invented, chain.from_iterable(shapes.values())))
    doubtful = {str(name) for name, times in names.items() if times > (0 if is_body else 1)}.difference(symbols)
    return {name: _without(type, doubtful) if name in shapes else type for name, type in declared.items()}


def _is_invented(dim: Dim) -> bool:
    return isinstance(dim, str) and INVENTED_BY_TORCH.match(dim) is not None


def _without(type: ValueType, names: set[str]) -> ValueType:
    dims = _dims(type)
    if not isinstance(type, TensorType) or names.isdisjoint(dims):
        return type
    return TensorType(type.dtype, tuple(None if d in names else d for d in dims))


def misnamed(message: bytes, declared: Mapping[str, ValueType]) -> Iterator[str]:
    """Descriptions of declared dimensions that share the name of an input's dimension, and change with it, but are not equal to it.

    `message` is a serialized model without declared types. A dimension that does not change may be equal in all sensible uses.
    """
    symbols = input_symbols(ModelProto.FromString(message).graph)
    first = with_stated_sizes(dict(zip(symbols, _primes(len(symbols)), strict=True)), symbols)
    found = _sizes(message, first, declared)
    suspect = [place for place, size in found.items() if size != first[place[2]]]
    if not suspect:
        return
    changed = {symbol for *_, symbol in suspect}
    second = with_stated_sizes({s: first[s] + 2 * LEAST_PRIME * (s in changed) for s in symbols}, symbols)
    again = _sizes(message, second, declared)
    for place in suspect:
        name, axis, symbol = place
        if again.get(place, found[place]) not in (found[place], second[symbol]):
            yield f"dimension {axis} of '{name}' is declared as {symbol}, but is {found[place]} where {symbol} is {first[symbol]}"


def _primes(number: int) -> Iterator[int]:
    odd = count(LEAST_PRIME, 2)
    return islice((n for n in odd if all(n % d for d in range(3, int(n**0.5) + 1, 2))), number)


def _sizes(
    message: bytes, sizes: Mapping[str, int], declared: Mapping[str, ValueType]
) -> dict[tuple[str, int, str], int]:
    """The inferred sizes of the dimensions (value, axis, symbol) that are declared by these symbols."""
    proto = ModelProto.FromString(message)
    for info in proto.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = sizes[dim.dim_param]
    try:
        with risky("onnx inferring shapes for tried sizes"):
            graph = infer_model(proto.SerializeToString()).graph
    except OrtconvError:
        return {}
    read, found = TypeReader(), {}
    for info in (*graph.output, *graph.value_info):
        stated = _dims(declared.get(info.name))
        for axis, (symbol, size) in enumerate(zip(stated, _dims(read(info.type)) if stated else (), strict=False)):
            if isinstance(symbol, str) and symbol in sizes and isinstance(size, int):
                found[info.name, axis, symbol] = size
    return found


def _dims(type: ValueType | None) -> tuple[Dim, ...]:
    return (type.shape or ()) if isinstance(type, TensorType) else ()
