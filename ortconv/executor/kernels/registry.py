"""The table of numpy kernels.

A kernel is a plain function whose signature is the operator's: inputs positional (None for an absent input), attributes
keyword-only under their ONNX names with their ONNX defaults. It returns one value, or a tuple with a value for each output and
perhaps for outputs that the node does not have.
Values are numpy arrays (read only unless the kernel made them), lists for sequences, None for an empty optional. Attributes
arrive as int, float, str, tuples of these, arrays (tensor attributes), or callables `body(*inputs) -> tuple` (subgraphs).
A kernel that declares a keyword `n_outputs` gets the number of outputs of the node. A kernel with `**place: Unpack[Geometry]`
takes the attributes that are keys of the TypedDict `Geometry`.

    @kernel("Softmax", since=13)
    def softmax(x, *, axis=-1): ...

`since` and `until` bound the operator's since_version, both inclusive. A kernel never writes to its inputs.

A kernel is the definition of its operator: plain numpy, generic in the type of elements as far as the operator's arithmetic is.
Floats may be exact numbers in object arrays, whose arithmetic and functions are methods of the elements; integers have numpy's
types. The forms that plans run instead are in `algorithms/`, and are named where the kernel is registered:

    @kernel("Reshape", fast=movement.reshape)        # reshape(work, x, shape, *, allowzero=0)
    @kernel("Add", record=of_ufunc(np.add))          # function (work, a, b)
    @kernel("MatMul", prepare=gemm.prepared_matmul)  # prepared_matmul([None, w]) -> function (work, x, w)
    @kernel("Attention", inner={"project": gemm.prepared_matmul})  # attention_ms(x, ..., *, ..., project=affine)

`fast` computes the same up to rounding, or returns None for operands that it does not support. `record` is such a form that is
used only while a run is recorded. `prepare` gets the operands (arrays if they are constant, else None) and the attributes; it
returns such a form, for example with weights laid out, or None. `inner` is for a kernel that gets functions by keyword: each entry
gets the arguments of `prepare`, and returns a function (work, *operands) that replaces the default, or None.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from inspect import CO_VARARGS, CO_VARKEYWORDS, unwrap
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

import numpy as np

from ortconv.executor.algorithms.half_precision import in_float32

Function = Callable[..., Any]

Prepare = Callable[..., Function | None]

_NOTHING: Mapping[str, Prepare] = MappingProxyType({})


class Kernel(NamedTuple):
    reference: Function
    """The operator's definition."""
    since: int
    until: int
    attributes: frozenset[str] | None
    """Names of the supported attributes; None if it accepts any."""
    wants_n_outputs: bool
    fast: Function | None = None
    record: Function | None = None
    prepare: Prepare | None = None
    inner: Mapping[str, Prepare] = _NOTHING
    build: Function | None = None
    """Function of the attributes that returns the kernel, a function of the operands."""
    most_operands: int | None = None
    """The number of supported inputs; None if it accepts any."""


_kernels: dict[tuple[str, str], list[Kernel]] = {}
_ANY_VERSION = 1 << 30

_NO_FAMILIES = {"evaluate", "registry"}

COMMON = (
    "movement", "indexing", "creation", "cast", "elementwise",
    "activation", "conv", "matmul", "pool", "legacy", "reduction", "normalization", "quantize",
)  # fmt: skip
"""Families that most models need, in the order of import: those of constant folding come first."""


class Geometry(TypedDict, total=False):
    """The attributes that state where the windows of a convolution are."""

    auto_pad: str
    dilations: Sequence[int] | None
    pads: Sequence[int] | None
    strides: Sequence[int] | None


class PoolGeometry(Geometry, total=False):
    ceil_mode: int


def kernel(
    *ops: str,
    domain: str = "",
    since: int = 1,
    until: int = _ANY_VERSION,
    fast: Function | None = None,
    record: Function | None = None,
    prepare: Prepare | None = None,
    inner: Mapping[str, Prepare] = _NOTHING,
    build: Function | None = None,
) -> Callable[[Function], Function]:
    """Register a function as the kernel of one or more operators, with the forms that plans run instead."""

    def register(function: Function) -> Function:
        names, takes_any = _keywords(function)
        known = None if takes_any else names - {"n_outputs", *inner}
        code = unwrap(function).__code__
        most = None if build is not None or code.co_flags & CO_VARARGS else code.co_argcount
        entry = Kernel(function, since, until, known, "n_outputs" in names, fast, record, prepare, inner, build, most)
        for op in ops:
            _kernels.setdefault((domain, op), []).append(entry)
        return function

    return register


def float_kernel(*ops: str, **options: Any) -> Callable[[Function], Function]:
    """Like `kernel`, for a function that computes in float32 if its first operand has half precision."""
    return lambda function: kernel(*ops, **options)(in_float32(function))


def _keywords(function: Function) -> tuple[frozenset[str], bool]:
    """The names of the keyword-only parameters of a function, and True if it accepts others as well."""
    function = unwrap(function)
    code = function.__code__  # inspect.signature takes ten times as long
    names = frozenset(code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])
    if not code.co_flags & CO_VARKEYWORDS:
        return names, False
    unpacked = re.search(r"Unpack\[(\w+)\]", " ".join(function.__annotations__.values()))
    return (names, True) if unpacked is None else (names | function.__globals__[unpacked[1]].__optional_keys__, False)


def table(functions: Mapping[str, Function], *, domain: str = "", since: int = 1, until: int = _ANY_VERSION) -> None:
    """Register a family of one-liners: operator name to function."""
    for op, function in functions.items():
        kernel(op, domain=domain, since=since, until=until)(function)


def older(op: str, *attributes: str, since: int = 1, until: int, fast: Function | None = None) -> None:
    """Register the kernel of an operator for versions in which its last inputs, of these names, are attributes."""
    newer = _kernels["", op][-1]

    def run(*inputs: Any, **given: Any) -> Any:
        stated = [np.asarray(given.pop(name)) for name in attributes if name in given]
        return newer.reference(*inputs, *stated, **given)

    known = None if newer.attributes is None else newer.attributes.union(attributes)
    _kernels["", op].append(Kernel(run, since, until, known, newer.wants_n_outputs, fast))


def built(*ops: str, domain: str = "") -> Callable[[Function], Function]:
    """Register `build(*, attributes) -> function(*inputs)`, which a plan calls once: for operators whose attributes are a model."""

    def register(build: Function) -> Function:
        @wraps(build)
        def call(*inputs: Any, **attributes: Any) -> Any:
            return build(**attributes)(*inputs)

        kernel(*ops, domain=domain, build=build)(call)
        return build

    return register


def lookup(domain: str, op: str, since: int) -> Kernel | None:
    """The kernel for an operator at a since_version, or None. Families are imported one by one until one of them has it."""
    pending = _pending_families()
    while True:
        for entry in _kernels.get((domain, op), ()):
            if entry.since <= since <= entry.until:
                return entry
        if not pending:
            return None
        importlib.import_module(f"ortconv.executor.kernels.{pending.pop()}")


@cache
def _pending_families() -> list[str]:
    """The modules of kernels not yet imported, in reverse order."""
    from pkgutil import iter_modules

    from ortconv.executor import kernels

    names = {module.name for module in iter_modules(kernels.__path__)} - _NO_FAMILIES
    return [*sorted(names.difference(COMMON), reverse=True), *reversed(COMMON)]
