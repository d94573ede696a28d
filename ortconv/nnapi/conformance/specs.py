"""The files of conformance records: models with inputs and expected outputs.

A file DIR/SPEC.json.gz has `arrays`, each [dtype, count, base64 of the bytes], and `records`, which refer to them by index. Operand
types, lifetimes and tolerances are those of Android's conformance tests.
"""

from __future__ import annotations

import gzip
import json
import zlib
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np

from ortconv.documents import read_as
from ortconv.errors import FormatError, UsageError
from ortconv.ir.tensor import Array


class ChannelQuantSpec(TypedDict):
    channelDim: int
    scales: list[float]


class OperandSpec(TypedDict):
    type: str
    dims: list[int]
    scale: float
    zeroPoint: int
    lifetime: str
    data: NotRequired[int | None]
    subgraph: NotRequired[int]
    channelQuant: NotRequired[ChannelQuantSpec | None]
    ignored: NotRequired[bool]


class OperationSpec(TypedDict):
    type: str
    inputs: list[int]
    outputs: list[int]


class GraphSpec(TypedDict):
    operands: list[OperandSpec]
    operations: list[OperationSpec]
    inputs: list[int]
    outputs: list[int]


class Example(TypedDict):
    inputs: list[int | None]
    outputs: list[int | None]


class Record(TypedDict):
    """A model and its examples. With `expect_failure`, it must be refused; with `timeout_test`, its loop reaches the deadline."""

    name: str
    model: GraphSpec
    subgraphs: list[GraphSpec]
    examples: list[Example]
    feature_level: int | None
    relaxed: bool
    expect_failure: bool
    lifetime_variation: NotRequired[bool]
    timeout_test: NotRequired[bool]
    multinomial_tolerance: NotRequired[float]


class Content(TypedDict):
    arrays: list[tuple[str, int, str]]
    records: list[Record]


@dataclass
class Spec:
    """The records of a file, and the arrays that they refer to."""

    path: Path
    records: list[Record]
    _stored: list[tuple[str, int, str]]
    _arrays: dict[int, Array] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name.removesuffix('.json.gz')}"

    def array(self, index: int) -> Array:
        """The elements of an array, flat."""
        if index not in self._arrays:
            dtype, _, text = self._stored[index]
            self._arrays[index] = np.frombuffer(b64decode(text), dtype)
        return self._arrays[index]

    def shaped(self, index: int, dims: Sequence[int]) -> Array:
        """The elements of an array, with these dimensions if their number fits."""
        flat = self.array(index)
        return flat.reshape(dims) if int(np.prod(dims, dtype=np.int64)) == flat.size else flat


def specs(folder: Path) -> Iterator[Spec]:
    """The files below a folder, sorted. Raises UsageError if there are none, FormatError for a file of another format."""
    paths = sorted(folder.rglob("*.json.gz"))
    if not paths:
        raise UsageError("the folder has no conformance records", file=folder, hint="they are files DIR/SPEC.json.gz")
    return map(read, paths)


def read(path: Path) -> Spec:
    """The records of a file. Raises FormatError if it has another format."""
    try:
        content = read_as(Content, json.loads(gzip.decompress(path.read_bytes())))
        return Spec(path, content["records"], content["arrays"])
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise FormatError(f"this is not a file of conformance records: {error!r}", file=path) from error


def operations_of(record: Record) -> list[str]:
    """The operations of a record and of its subgraphs, each once."""
    graphs = [record["model"], *record["subgraphs"]]
    return list(dict.fromkeys(operation["type"] for graph in graphs for operation in graph["operations"]))


class Tolerance(TypedDict):
    absolute: float
    relative: float


HALF = Tolerance(absolute=5 * 2.0**-10, relative=5 * 2.0**-10)
SINGLE = Tolerance(absolute=1e-5, relative=5 * 2.0**-23)
EXACT = Tolerance(absolute=0.0, relative=0.0)
ONE_STEP = Tolerance(absolute=1.0, relative=0.0)
THREE_STEPS = Tolerance(absolute=3.0, relative=0.0)
BY_TYPE = {"TENSOR_FLOAT16": HALF, "TENSOR_BOOL8": EXACT}
EIGHT_BITS = ("TENSOR_QUANT8_ASYMM", "TENSOR_QUANT8_ASYMM_SIGNED", "TENSOR_QUANT8_SYMM")


def tolerance(record: Record, kind: str) -> Tolerance:
    """The tolerance for elements of an output of this type: |got - want| <= absolute + relative * |want|."""
    operands = (one for graph in (record["model"], *record["subgraphs"]) for one in graph["operands"])
    if kind in BY_TYPE:
        return BY_TYPE[kind]
    if kind == "TENSOR_FLOAT32":
        is_half = record["relaxed"] or any(one["type"] == "TENSOR_FLOAT16" for one in operands)
        return HALF if is_half else SINGLE
    return THREE_STEPS if kind in EIGHT_BITS and "mobilenet" in record["name"] else ONE_STEP
